"""What is traced for ExecuTorch in place of operations whose kernels are wrong or slow, or that XNNPACK lacks."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from exporter.decompositions import Decompositions, core_decompositions

__all__ = ["executorch_decompositions"]

_aten = torch.ops.aten
_LEFT: Any = NotImplemented  # the operation stays as it is
_TINY = 1e-30  # beside the square of a number above 1e-11 it changes no bit
_TILE = 16  # columns of a product's second operand that XNNPACK packs at once
_LITTLE = 1 << 16  # numbers, which are packed in no time


def _mm_as_bmm(a: Tensor, b: Tensor) -> Tensor:
    # By reshape: XNNPACK takes it along, where an unsqueeze would end its part of the graph.
    product = torch.bmm(a.reshape(1, *a.shape), b.reshape(1, *b.shape))
    return product.reshape(a.shape[0], b.shape[1])


def _addmm_as_bmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = _mm_as_bmm(a, b)
    return (product if alpha == 1 else product * alpha) + (bias if beta == 1 else bias * beta)


def _threshold_backward(gradient: Tensor, values: Tensor, threshold: float) -> Tensor:
    """The gradient where ``values`` exceed ``threshold``, 0 elsewhere, in operations that XNNPACK takes."""
    return gradient * torch.ceil(torch.clamp(values - threshold if threshold else values, 0, 1))


def _constant_pad(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """Padding that also cuts, in two operations: XNNPACK takes no negative padding."""
    if min(pad) >= 0:
        return _LEFT  # type: ignore[no-any-return]
    for i in range(len(pad) // 2):
        axis, before, after = x.dim() - 1 - i, min(pad[2 * i], 0), min(pad[2 * i + 1], 0)
        if before or after:
            x = x.narrow(axis, -before, x.shape[axis] + before + after)
    grown = [max(amount, 0) for amount in pad]
    return torch.constant_pad_nd(x, grown, value) if any(grown) else x


# By reshape, as above.
def _squeeze(x: Tensor, dim: int) -> Tensor:
    axis = dim % x.dim()
    return x.reshape([*x.shape[:axis], *x.shape[axis + 1 :]]) if x.shape[axis] == 1 else x.reshape(x.shape)


def _unsqueeze(x: Tensor, dim: int) -> Tensor:
    axis = dim % (x.dim() + 1)
    return x.reshape([*x.shape[:axis], 1, *x.shape[axis:]])


def _select(x: Tensor, dim: int, index: int) -> Tensor:
    axis = dim % x.dim()
    taken = x.narrow(axis, index % x.shape[axis], 1)
    return taken.reshape([*x.shape[:axis], *x.shape[axis + 1 :]])


def _euclidean_norm(
    x: Tensor, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """It has a kernel of no norm."""
    if ord != 2 or dtype is not None:
        return _LEFT  # type: ignore[no-any-return]
    return (x * x).sum(list(range(x.dim())) if dim is None else list(dim), keepdim=keepdim).sqrt()


def _div_scalar(x: Tensor, divisor: float) -> Tensor:
    return x / divisor  # XNNPACK divides tensors, which numbers become


def _gelu_backward(gradient: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    """The gradient of gelu(x) = x P(x), P and p the normal distribution's: P(x) + x p(x).

    XNNPACK has gelu, which the forward pass computes anyway, and no erf: P(x) is x gelu(x) / x^2, and 1/2 at 0.
    """
    if approximate != "none" or x.dtype != torch.float32:
        return torch._decomp.decompositions.gelu_backward(gradient, x, approximate)  # type: ignore[no-any-return]
    square = x * x
    below = (x * torch.nn.functional.gelu(x) + _TINY / 2) / (square + _TINY)
    density = torch.exp(square * -0.5) * (1 / math.sqrt(2 * math.pi))
    return gradient * (below + x * density)


def _means(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The means over the last axes, which have ``shape``, as a product of matrices."""
    count = math.prod(shape)
    means = torch.bmm(x.reshape(1, -1, count), x.new_full((1, count, 1), 1 / count))
    return means.reshape([*x.shape[: x.dim() - len(shape)], *([1] * len(shape))])


def _layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    """In operations that XNNPACK takes: ExecuTorch's kernel takes longer, and would end its part of the graph."""
    if x.dtype != torch.float32 or not x.numel():
        return _LEFT
    mean = _means(x, normalized_shape)
    mean = mean + _means(x - mean, normalized_shape)  # 1 / count is rounded: features that are alike must give 0
    centred = x - mean
    rstd = torch.rsqrt(_means(centred * centred, normalized_shape) + eps)
    result = centred * rstd
    result = result if weight is None else result * weight
    return result if bias is None else result + bias, mean, rstd


def _layer_norm_backward(  # noqa: PLR0917  # ATen's signature
    gradient: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> Any:
    """The usual rule, with means that are products of matrices."""
    if x.dtype != torch.float32 or not x.numel():
        usual = torch._decomp.decompositions.native_layer_norm_backward
        return usual(gradient, x, list(normalized_shape), mean, rstd, weight, bias, list(output_mask))
    norm = (x - mean) * rstd
    scaled = gradient if weight is None else gradient * weight
    given = scaled - _means(scaled, normalized_shape) - norm * _means(scaled * norm, normalized_shape)
    outer = list(range(x.dim() - len(normalized_shape)))
    return (
        rstd * given if output_mask[0] else None,
        _summed(gradient * norm, outer) if output_mask[1] and weight is not None else None,
        _summed(gradient, outer) if output_mask[2] and bias is not None else None,
    )


def _summed(x: Tensor, axes: Sequence[int]) -> Tensor:
    return x.sum(list(axes)) if axes else x.clone()  # a sum over no axes would be one over all


def _sum(x: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over the first or the last axes as a product with ones, as the kernel of sums adds one number at a time.

    Left are sums of which packing the product's second operand would be most of the work, such as those over all axes.
    """
    axes = sorted(axis % x.dim() for axis in dim or range(x.dim())) if x.dim() else []
    before, after = x.shape[: axes[0]] if axes else (), x.shape[axes[-1] + 1 :] if axes else ()
    adjacent = bool(axes) and axes == list(range(axes[0], axes[-1] + 1))
    rows, columns = math.prod(before), math.prod(after)
    if dtype is not None or x.dtype != torch.float32 or not adjacent or min(rows, columns) > 1 or not x.numel():
        return _LEFT  # type: ignore[no-any-return]
    count = x.numel() // (rows * columns)
    if count * -(-columns // _TILE) * _TILE > max(2 * x.numel(), _LITTLE):
        return _LEFT  # type: ignore[no-any-return]
    if columns == 1:
        batches = _batches(before)
        total = torch.bmm(x.reshape(batches, rows // batches, count), x.new_ones(batches, count, 1))
    else:
        total = torch.bmm(x.new_ones(1, 1, count), x.reshape(1, count, columns))
    return total.reshape([*before, *([1] * len(axes) if keepdim else []), *after])


def _batches(rows: Sequence[int]) -> int:
    """The batches of a product whose results have the axes ``rows``: attention's scores are summed as they lie.

    A column of ones is packed for each, which is little beside many rows.
    """
    return math.prod(rows[:-1]) if len(rows) > 2 and rows[-1] >= _TILE else 1


def executorch_decompositions() -> Decompositions:
    """What is traced in place of operations whose kernels are wrong or slow, or that XNNPACK does not take."""
    table = core_decompositions()
    # XNNPACK takes a product of two inputs only as a batched one.
    table[_aten.mm.default] = _mm_as_bmm
    table[_aten.addmm.default] = _addmm_as_bmm
    table[_aten.threshold_backward.default] = _threshold_backward
    table[_aten.constant_pad_nd.default] = _constant_pad
    table[_aten.squeeze.dim] = _squeeze
    table[_aten.unsqueeze.default] = _unsqueeze
    table[_aten.select.int] = _select
    table[_aten.div.Scalar] = _div_scalar
    table[_aten.linalg_vector_norm.default] = _euclidean_norm
    table[_aten.gelu_backward.default] = _gelu_backward
    table[_aten.sum.dim_IntList] = _sum
    table[_aten.native_layer_norm.default] = _layer_norm
    table[_aten.native_layer_norm_backward.default] = _layer_norm_backward
    fixed = table[_aten._native_batch_norm_legit_no_training.default]
    table[_aten.native_batch_norm.default] = lambda *args: _LEFT if args[5] else fixed(*args[:5], *args[6:])
    return table
