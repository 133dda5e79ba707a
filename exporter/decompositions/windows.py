"""Sliding windows along one axis, in operations that every runtime has and that copy whole runs of memory.

A stride s is taken away by splitting the axis into its s *phases*, the entries s apart; each tap of a kernel then reads
one phase, moved by a whole number of entries. Tensors are batch-last, ``[..., C, H, W, B]``, so a move along H or W is
a copy of contiguous pieces. ``H`` and ``W`` are those axes counted from the end; their lengths must be plain numbers.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["Axis", "Cut", "H", "Kernel", "Phases", "Tap", "W", "merge", "spread", "total", "window"]

H, W = -3, -2


@dataclass(frozen=True)
class Tap:
    """One entry of a kernel: output i reads entry ``i + shift`` of phase ``phase``."""

    phase: int
    shift: int


@dataclass(frozen=True)
class Axis:
    """A kernel on an axis of ``size`` entries."""

    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    ceil: bool = False

    @property
    def outputs(self) -> int:
        """How often the kernel fits; with ``ceil`` also where it only starts inside (or in the front padding)."""
        room = self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1
        if not self.ceil:
            return room // self.stride + 1
        count = -(-room // self.stride) + 1
        return count - 1 if (count - 1) * self.stride >= self.size + self.padding else count

    @property
    def rows(self) -> int:
        """Entries of a phase."""
        return -(-self.size // self.stride)

    @property
    def taps(self) -> list[Tap]:
        """One for each entry of the kernel, in order."""
        starts = (i * self.dilation - self.padding for i in range(self.kernel))
        return [Tap(start % self.stride, start // self.stride) for start in starts]


Kernel = tuple[Axis, Axis]
"""Along H and along W."""


@dataclass(frozen=True)
class Cut:
    """Entries ``start .. start + length`` of an axis, which may lie outside it."""

    axis: int
    start: int
    length: int


class Phases:
    """A tensor's rows and columns by phase: entry ``i`` of phase ``p`` is row ``i * stride + p``.

    Phases are equally long; ``fill`` stands where the last ones have no entry, and outside. Axes before the channels
    are taken together with them meanwhile: XNNPACK has no tensors of more than six.
    """

    def __init__(self, x: Tensor, h_stride: int, w_stride: int, fill: float = 0.0) -> None:
        self._fill = fill
        self._whole = h_stride == w_stride == 1
        rows, columns = -(-int(x.shape[H]) // h_stride), -(-int(x.shape[W]) // w_stride)
        even = window(x, Cut(H, 0, rows * h_stride), Cut(W, 0, columns * w_stride), fill=fill)
        self._leading = x.shape[:H]
        channels = math.prod(self._leading)
        self._split = even
        if not self._whole:
            self._split = even.reshape([channels, rows, h_stride, columns, w_stride, x.shape[-1]])

    def read(self, down: Tap, height: int, across: Tap, width: int) -> Tensor:
        """``height`` rows of a phase from ``down.shift`` on, and ``width`` columns: ``[..., height, width, B]``."""
        cuts = [Cut(H, down.shift, height), Cut(W, across.shift, width)]
        if self._whole:
            return window(self._split, *cuts, fill=self._fill)
        cuts = [
            replace(cuts[0], axis=-5),
            Cut(-4, down.phase, 1),
            replace(cuts[1], axis=-3),
            Cut(-2, across.phase, 1),
        ]
        found = window(self._split, *cuts, fill=self._fill).squeeze(-2).squeeze(-3)
        return (
            found if len(self._leading) == 1 else found.reshape([*self._leading, height, width, found.shape[-1]])
        )


def window(x: Tensor, *cuts: Cut, fill: float = 0.0) -> Tensor:
    """The entries that ``cuts`` name; ``fill`` where there are none."""
    pad, shape, outside = [0, 0] * x.dim(), list(x.shape), False
    for cut in cuts:
        axis, size = cut.axis % x.dim(), int(x.shape[cut.axis])
        pad[2 * axis : 2 * axis + 2] = -cut.start, cut.start + cut.length - size
        shape[axis] = cut.length
        outside = outside or cut.start >= size or cut.start + cut.length <= 0
    if outside:
        return torch.full(shape, fill, dtype=x.dtype, device=x.device)
    if not any(pad):
        return x
    # One operation, though it cuts and pads at once along several axes: onnxruntime then copies once.
    last_first = [amount for axis in reversed(range(x.dim())) for amount in pad[2 * axis : 2 * axis + 2]]
    return torch.constant_pad_nd(x, last_first, fill)


def merge(parts: Sequence[Tensor | None], dim: int, size: int) -> Tensor:
    """The axis of ``size`` entries whose phases are ``parts``; None stands for zeros."""
    first = next(part for part in parts if part is not None)
    if len(parts) == 1:
        return window(first, Cut(dim, 0, size))
    dim %= first.dim()
    apart = [part if part is None else part.unsqueeze(dim + 1) for part in parts]
    placed = {phase: part for phase, part in enumerate(apart) if part is not None}
    if len(placed) == len(parts):
        joined = torch.cat(list(placed.values()), dim + 1)
    else:
        joined = total([window(part, Cut(dim + 1, -phase, len(parts))) for phase, part in placed.items()])
    rows = int(first.shape[dim]) * len(parts)
    return window(joined.reshape([*first.shape[:dim], rows, *first.shape[dim + 1 :]]), Cut(dim, 0, size))


def spread(gradients: Sequence[Tensor], kernel: Kernel) -> Tensor:
    """The gradient ``[C, H, W, B]`` of what a kernel reads, from its entries' ``[C, Ho, Wo, B]``, row by row."""
    h, w = kernel
    by_row: dict[int, list[Tensor]] = defaultdict(list)
    for row, down in enumerate(h.taps):
        by_column: dict[int, list[Tensor]] = defaultdict(list)
        for column, across in enumerate(w.taps):
            gradient = gradients[row * w.kernel + column]
            by_column[across.phase].append(window(gradient, Cut(W, -across.shift, w.rows)))
        parts = [total(by_column[p]) if p in by_column else None for p in range(w.stride)]
        by_row[down.phase].append(window(merge(parts, W, w.size), Cut(H, -down.shift, h.rows)))
    return merge([total(by_row[p]) if p in by_row else None for p in range(h.stride)], H, h.size)


def total(terms: Sequence[Tensor]) -> Tensor:
    """The sum, in pairs: rounding errors grow with the logarithm of their number."""
    level = list(terms)
    while len(level) > 1:
        level = [level[i] + level[i + 1] if i + 1 < len(level) else level[i] for i in range(0, len(level), 2)]
    return level[0]
