"""ExecuTorch with XNNPACK: a static program for each width and batch."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from executorch.exir import EdgeProgramManager
from torch import Tensor
from torch.export import ExportedProgram

from edge_fl.core.bundle import Program
from edge_fl.core.errors import UnsupportedModelError
from exporter.decompositions import Decompositions, core_decompositions
from exporter.lower import Lowered, Report, Request, kept_at
from exporter.lower._edge import UNCHECKED, to_edge
from exporter.lower._xnnpack import delegate
from exporter.recurrent import unrolled
from exporter.sentence import first_line
from exporter.source import Traceable
from exporter.trace import export_static

__all__ = ["EVALUATION_BATCH", "executorch_decompositions", "lower", "to_executorch"]

EVALUATION_BATCH = 200
"""Larger ones are no faster, and a phone's memory is small."""
_aten = torch.ops.aten
_LEFT: Any = NotImplemented  # the operation stays as it is
_TINY = 1e-30  # beside the square of a number above 1e-11 it changes no bit
_TILE = 16  # columns of a product's second operand that XNNPACK packs at once
_LITTLE = 1 << 16  # numbers, which are packed in no time


def lower(request: Request, report: Report) -> Lowered:
    """One ``.pte`` a step variant and width, and one that evaluates.

    Raises
    ------
    UnsupportedModelError
        When ExecuTorch has no kernel for an operation of the model.
    """
    lowered: Lowered = []
    for step in request.steps:
        for width in request.widths:
            report(f"train step '{step.variant}' at width {width / 1000:g}")
            kept = kept_at(step.source.layout, width)
            file = f"executorch/step-{step.variant}-w{width:04d}-b{request.batch}.pte"
            program = Program(
                file,
                "step",
                step.inputs,
                step.outputs,
                variant=step.variant,
                kept=kept,
                batch=request.batch,
                micro_batch=step.multiple,
            )
            lowered.append((program, _compiled(step, kept, request.batch)))
    full = request.evaluation.source.full
    for kind, whole in request.whole(report):
        batch = EVALUATION_BATCH if kind == "eval" else request.batch  # below lies the larger part of a model
        program = Program(f"executorch/{kind}.pte", kind, whole.inputs, whole.outputs, kept=full, batch=batch)
        lowered.append((program, _compiled(whole, full, batch)))
    return lowered


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
        total = torch.bmm(x.reshape(1, rows, count), x.new_ones(1, count, 1))
    else:
        total = torch.bmm(x.new_ones(1, 1, count), x.reshape(1, count, columns))
    return total.reshape([*before, *([1] * len(axes) if keepdim else []), *after])


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
    fixed = table[_aten._native_batch_norm_legit_no_training.default]
    table[_aten.native_batch_norm.default] = lambda *args: _LEFT if args[5] else fixed(*args[:5], *args[6:])
    return table


def _compiled(program: Traceable, kept: dict[str, int], batch: int) -> bytes:
    with unrolled():  # it has no loops
        exported = export_static(program, kept, batch, executorch_decompositions())
    return to_executorch(exported)


def to_executorch(exported: ExportedProgram) -> bytes:
    """A program traced under :func:`executorch_decompositions` as a ``.pte`` file; it cannot be used any more.

    Raises UnsupportedModelError when an operation has no kernel.
    """
    try:
        manager = EdgeProgramManager(delegate(to_edge(exported)), compile_config=UNCHECKED)
        return bytes(manager.to_executorch().buffer)
    except Exception as error:  # its passes raise many types on what they do not know
        raise UnsupportedModelError(
            f"ExecuTorch cannot compile an operation of the model: {first_line(error)}."
        ) from error
