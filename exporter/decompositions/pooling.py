"""Two-dimensional pooling and its gradients: whole planes, one for each entry of the kernel, compared or added.

Max pooling's gradient goes to the first entry that holds the maximum, as torch's does. It is found anew from the input
(the planes are shared with the forward pass), so no runtime needs a kernel that scatters.
"""
# ruff: noqa: PLR0917 - the signatures are ATen's

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from exporter.decompositions.layout import batch_first, batch_last
from exporter.decompositions.resizing import product_along
from exporter.decompositions.windows import Axis, Kernel, Phases, spread, total

__all__ = ["pooling_decompositions"]

_aten = torch.ops.aten
_LEFT: Any = NotImplemented  # the operation stays as it is


def pooling_decompositions() -> dict[Any, Callable[..., Any]]:
    """What to trace in place of ATen's max, average and adaptive average pooling."""
    return {
        _aten.max_pool2d_with_indices.default: _max_pool,
        _aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
        _aten.avg_pool2d.default: _avg_pool,
        _aten.avg_pool2d_backward.default: _avg_pool_backward,
        _aten._adaptive_avg_pool2d.default: _adaptive_avg_pool,
        _aten._adaptive_avg_pool2d_backward.default: _adaptive_avg_pool_backward,
    }


def _max_pool(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    kernel = _kernel(x, kernel_size, stride, padding, dilation, ceil_mode)
    planes = _planes(_spatial(x), kernel, float("-inf"))
    highest = _maximum(planes)
    return _like(batch_first(highest), x), _like(batch_first(_indices(planes, highest, kernel)), x)


def _max_pool_backward(
    gradient: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    kernel = _kernel(x, kernel_size, stride, padding, dilation, ceil_mode)
    planes = _planes(_spatial(x), kernel, float("-inf"))
    highest = _maximum(planes)
    routed = []
    left = _spatial(gradient)
    for plane in planes[:-1]:
        # threshold_backward: what is left where this plane is below the maximum, 0 where it holds it.
        remains = _aten.threshold_backward(left, highest - plane, 0)
        routed.append(left - remains)
        left = remains
    return _like(batch_first(spread([*routed, left], kernel)), x)


def _avg_pool(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    kernel = _kernel(x, kernel_size, stride, padding, (1,), ceil_mode)
    planes = _planes(_spatial(x), kernel, 0.0)
    share = _share(x, kernel, count_include_pad, divisor_override)
    return _like(batch_first(total(planes) * share), x)


def _avg_pool_backward(
    gradient: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    kernel = _kernel(x, kernel_size, stride, padding, (1,), ceil_mode)
    moved = _spatial(gradient) * _share(x, kernel, count_include_pad, divisor_override)
    h, w = kernel
    return _like(batch_first(spread([moved] * (h.kernel * w.kernel), kernel)), x)


def _adaptive_avg_pool(x: Tensor, output_size: Sequence[int]) -> Tensor:
    size = _divided(x, output_size)
    if size is None:
        h, w = (_windows(x, axis, int(output_size[axis])) for axis in (-2, -1))
        return _along_both(x, h, w)
    return _avg_pool(x, size)


def _adaptive_avg_pool_backward(gradient: Tensor, x: Tensor) -> Tensor:
    size = _divided(x, gradient.shape[-2:])
    if size is None:
        h, w = (_windows(x, axis, int(gradient.shape[axis])) for axis in (-2, -1))
        return _along_both(gradient, h.T, w.T)
    return _avg_pool_backward(gradient, x, size, size, (0,), False, True, None)


def _divided(x: Tensor, output_size: Sequence[int]) -> tuple[int, int] | None:
    """The kernel that adaptive pooling amounts to; None where its windows differ in size."""
    inputs = int(x.shape[-2]), int(x.shape[-1])
    outputs = int(output_size[0]), int(output_size[1])
    if any(i % o for i, o in zip(inputs, outputs, strict=True)):
        return None
    return inputs[0] // outputs[0], inputs[1] // outputs[1]


def _windows(x: Tensor, axis: int, outputs: int) -> Tensor:
    """``[outputs, inputs]``, what each output is the mean of: from floor(i n / o) to ceil((i + 1) n / o)."""
    inputs = int(x.shape[axis])
    rows = []
    for i in range(outputs):
        start, stop = i * inputs // outputs, -(-(i + 1) * inputs // outputs)
        rows.append([1 / (stop - start) if start <= j < stop else 0.0 for j in range(inputs)])
    return torch.tensor(rows, dtype=x.dtype)


def _along_both(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``rows x columns^T`` for the last two axes of ``x``."""
    return product_along(product_along(x, -1, columns), -2, rows)


def _kernel(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Kernel:
    size = _both(kernel_size)
    step = _both(stride) if len(stride) else size
    pad, apart = _both(padding), _both(dilation)
    h, w = (Axis(int(x.shape[i - 2]), size[i], step[i], pad[i], apart[i], ceil_mode) for i in (0, 1))
    return h, w


def _both(values: Sequence[int]) -> tuple[int, int]:
    return values[0], values[-1]


def _spatial(x: Tensor) -> Tensor:
    """``[B, C, H, W]`` or ``[C, H, W]`` as ``[C, H, W, B]``."""
    return batch_last(x) if x.dim() == 4 else x.unsqueeze(3)


def _like(x: Tensor, like: Tensor) -> Tensor:
    return x if like.dim() == 4 else x.squeeze(0)


def _planes(x: Tensor, kernel: Kernel, fill: float) -> list[Tensor]:
    """What each entry of the kernel reads, ``[C, Ho, Wo, B]``, in the order of torch's comparisons."""
    h, w = kernel
    split = Phases(x, h.stride, w.stride, fill)
    return [split.read(down, h.outputs, across, w.outputs) for down in h.taps for across in w.taps]


def _maximum(planes: Sequence[Tensor]) -> Tensor:
    level = list(planes)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [torch.maximum(a, b) for a, b in pairs] + level[len(level) // 2 * 2 :]
    return level[0]


def _indices(planes: Sequence[Tensor], highest: Tensor, kernel: Kernel) -> Tensor:
    """Where in its ``H x W`` plane each maximum lies (int64). Nothing here reads it; a model may."""
    h, w = kernel
    found = torch.zeros_like(highest, dtype=torch.int64)
    places = [(i, j) for i in range(h.kernel) for j in range(w.kernel)]
    for (i, j), plane in reversed(list(zip(places, planes, strict=True))):
        down = torch.arange(h.outputs) * h.stride - h.padding + i * h.dilation
        across = torch.arange(w.outputs) * w.stride - w.padding + j * w.dilation
        place = down.reshape([1, -1, 1, 1]) * w.size + across.reshape([1, 1, -1, 1])
        found = torch.where(plane == highest, place, found)
    return found


def _share(x: Tensor, kernel: Kernel, count_include_pad: bool, divisor: int | None) -> Tensor | float:
    """What one entry counts in its window's mean; windows at the edge may hold fewer."""
    h, w = kernel
    if divisor is not None:
        return 1 / divisor
    if not (h.ceil or ((h.padding or w.padding) and not count_include_pad)):
        return 1 / (h.kernel * w.kernel)
    down, across = (_counts(axis, count_include_pad) for axis in kernel)
    counted = [[1 / (a * b) for b in across] for a in down]
    return torch.tensor(counted, dtype=x.dtype).reshape([1, h.outputs, w.outputs, 1])


def _counts(axis: Axis, count_include_pad: bool) -> list[int]:
    """How many entries each window counts."""
    pad = axis.padding if count_include_pad else 0
    starts = [i * axis.stride - axis.padding for i in range(axis.outputs)]
    return [min(start + axis.kernel, axis.size + pad) - max(start, -pad) for start in starts]
