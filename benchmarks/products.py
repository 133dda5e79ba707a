"""The matrix products of a train step and nothing else, in torch and in each runtime: a floor of the step's time."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from exporter.trace import export_function, trace_function

__all__ = ["ALONE", "Shape", "products"]

Shape = tuple[int, int, int, int]
"""``count`` products at once of ``[rows, inner]`` by ``[inner, columns]``, in this order."""


def products(shapes: Sequence[Shape], runtime: str | None, *, threads: int) -> Callable[[], object]:
    """Of each product of a forward pass, and of both products of its gradients, on random float32 tensors made before.

    Parameters
    ----------
    shapes
        The products of the forward pass.
    runtime
        One of :data:`ALONE`, or None for torch eager.
    threads
        Of the runtime; torch's are the process's.
    """
    torch.manual_seed(0)
    tensors = tuple(
        torch.rand(shape)
        for count, rows, inner, columns in shapes
        for shape in ((count, rows, inner), (count, inner, columns), (count, rows, columns))
    )
    if runtime is None:
        return lambda: [product for triple in _triples(tensors) for product in _products(*triple)]
    return ALONE[runtime](tensors, threads)


def _triples(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(tensors[i], tensors[i + 1], tensors[i + 2]) for i in range(0, len(tensors), 3)]


def _products(x: Tensor, weights: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.bmm(x, weights), torch.bmm(gradient, weights.mT), torch.bmm(x.mT, gradient)


def _corners(*tensors: Tensor) -> tuple[Tensor]:
    """A number of each product: whole ones would be copied out."""
    corners = [product[:1, :1, :1] * 2 for triple in _triples(tensors) for product in _products(*triple)]
    return (torch.cat(corners),)


def _onnx(tensors: tuple[Tensor, ...], threads: int) -> Callable[[], object]:
    import onnxruntime

    from edge_fl.runtimes.onnx import session_options
    from exporter.lower.onnx import onnx_decompositions, to_onnx

    names = [f"x{i}" for i in range(len(tensors))]
    content = to_onnx(export_function(_corners, tensors, onnx_decompositions()), names, ["corners"])
    session = onnxruntime.InferenceSession(content, session_options(threads), providers=["CPUExecutionProvider"])
    inputs = dict(zip(names, _arrays(tensors), strict=True))
    return lambda: session.run(None, inputs)


def _executorch(tensors: tuple[Tensor, ...], threads: int) -> Callable[[], object]:
    from edge_fl.runtimes._executorch.native import NativeProgram, set_threads
    from exporter.lower.executorch import to_executorch
    from exporter.lower.executorch_decompositions import executorch_decompositions

    set_threads(threads)
    content = to_executorch(trace_function(_corners, tensors, executorch_decompositions()))
    program, inputs = NativeProgram(content, "products"), _arrays(tensors)
    return lambda: program.run(inputs)


def _arrays(tensors: Sequence[Tensor]) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return [tensor.numpy() for tensor in tensors]


ALONE: Mapping[str, Callable[[tuple[Tensor, ...], int], Callable[[], object]]] = {
    "onnx": _onnx,
    "executorch": _executorch,
}
"""The runtimes in which products can be made alone."""
