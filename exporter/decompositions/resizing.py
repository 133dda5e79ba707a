"""Upsampling and its gradient: a product along each axis with a matrix of what every output takes of every input.

ExecuTorch has no kernels for most of them, and the gradient is the product with the transposed matrix. An export with
open lengths never comes here: torch itself decomposes upsampling there, into gathers.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["product_along", "resizing_decompositions"]

_aten = torch.ops.aten
_CUBIC = -0.75  # torch's parameter of cubic interpolation
_Taps = Callable[..., list[dict[int, float]]]
"""Of how many inputs and outputs, and of a scale (None: their ratio), which inputs each output takes, and how much."""


def resizing_decompositions() -> dict[Any, Callable[..., Any]]:
    """What to trace in place of ATen's nearest, linear and cubic upsampling, of one to three axes."""
    table: dict[Any, Callable[..., Any]] = {}
    for axes in ("1d", "2d", "3d"):
        table |= _both(f"upsample_nearest{axes}", partial(_nearest, offset=0.0))
        table |= _both(f"_upsample_nearest_exact{axes}", partial(_nearest, offset=0.5))
    for name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
        table |= _both(name, _linear, aligns=True)
    return table | _both("upsample_bicubic2d", _cubic, aligns=True)


def _both(name: str, taps: _Taps, *, aligns: bool = False) -> dict[Any, Callable[..., Any]]:
    """The operation and its gradient, which may take ``align_corners`` before their scales."""

    def chosen(more: Sequence[Any]) -> tuple[_Taps, Sequence[float | None]]:
        return (partial(taps, align=more[0]), more[1:]) if aligns else (taps, more)

    def forward(x: Tensor, output_size: Sequence[int], *more: Any) -> Tensor:
        return _resized(x, x.shape[2:], output_size, *chosen(more), transposed=False)

    def backward(gradient: Tensor, output_size: Sequence[int], input_size: Sequence[int], *more: Any) -> Tensor:
        return _resized(gradient, input_size[2:], output_size, *chosen(more), transposed=True)

    return {getattr(_aten, name).default: forward, getattr(_aten, f"{name}_backward").default: backward}


def _resized(
    x: Tensor,
    inputs: Sequence[int],
    outputs: Sequence[int],
    taps: _Taps,
    scales: Sequence[float | None],
    *,
    transposed: bool,
) -> Tensor:
    # torch leaves out scales that are None.
    for i, (before, after, scale) in enumerate(zip_longest(map(int, inputs), map(int, outputs), scales)):
        taken = taps(before, after, scale)
        matrix = torch.tensor([[row.get(j, 0.0) for j in range(before)] for row in taken], dtype=x.dtype)
        x = product_along(x, i - len(inputs), matrix.T if transposed else matrix)
    return x


def product_along(x: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """``matrix [outputs, inputs]`` times each vector of ``inputs`` numbers along ``axis``, from -1 down, of ``x``."""
    if axis == -1:
        return x @ matrix.T
    return (x.transpose(axis, -1) @ matrix.T).transpose(axis, -1)


def _nearest(inputs: int, outputs: int, scale: float | None, *, offset: float) -> list[dict[int, float]]:
    if not offset and outputs in (inputs, 2 * inputs):  # where torch's kernels look at no scale
        return [{i * inputs // outputs: 1.0} for i in range(outputs)]
    step = np.float32(1 / scale if scale else inputs / outputs)  # torch's own precision decides at the borders
    return [{min(int((np.float32(i) + np.float32(offset)) * step), inputs - 1): 1.0} for i in range(outputs)]


def _linear(inputs: int, outputs: int, scale: float | None, *, align: bool) -> list[dict[int, float]]:
    taken: list[dict[int, float]] = []
    if inputs == outputs:  # as above
        return [{i: 1.0} for i in range(outputs)]
    for i in range(outputs):
        at = max(_place(i, inputs, outputs, scale, align=align), 0.0)
        first = min(int(at), inputs - 1)
        share = min(at - first, 1.0)
        taken.append(_summed([(first, 1 - share), (first + 1, share)], inputs))
    return taken


def _cubic(inputs: int, outputs: int, scale: float | None, *, align: bool) -> list[dict[int, float]]:
    taken = []
    for i in range(outputs):
        at = _place(i, inputs, outputs, scale, align=align)
        first = math.floor(at)
        taken.append(_summed([(first + j, _convolved(abs(at - first - j))) for j in range(-1, 3)], inputs))
    return taken


def _convolved(distance: float) -> float:
    """Keys' cubic kernel, for distances below 2."""
    d, a = distance, _CUBIC
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return ((d - 5) * d + 8) * d * a - 4 * a


def _place(i: int, inputs: int, outputs: int, scale: float | None, *, align: bool) -> float:
    """Where output ``i`` lies between the inputs."""
    if align:
        return i * (inputs - 1) / (outputs - 1) if outputs > 1 else 0.0
    return (i + 0.5) * (1 / scale if scale else inputs / outputs) - 0.5


def _summed(taps: Sequence[tuple[int, float]], inputs: int) -> dict[int, float]:
    """Inputs before the first and behind the last are those."""
    found: dict[int, float] = {}
    for place, weight in taps:
        at = min(max(place, 0), inputs - 1)
        found[at] = found.get(at, 0.0) + weight
    return found
