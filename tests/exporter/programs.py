"""Functions of tensors run by the runtimes themselves, without a bundle around them."""

from collections.abc import Callable, Sequence

import onnxruntime
import torch
from torch import Tensor

from exporter.lower.executorch import to_executorch
from exporter.lower.executorch_decompositions import executorch_decompositions
from exporter.lower.onnx import onnx_decompositions, to_onnx
from exporter.open_lengths import Length
from exporter.quiet import quiet
from exporter.trace import export_function, trace_function

Function = Callable[..., tuple[Tensor, ...]]


def with_gradients(function: Callable[..., Tensor]) -> Function:
    """The result of ``function``, and the gradients of its mean cube with respect to its operands."""

    def evaluated(*operands: Tensor) -> tuple[Tensor, ...]:
        leaves = [operand.detach().requires_grad_() for operand in operands]
        output = function(*leaves)
        return output.detach(), *torch.autograd.grad((output * output * output).mean(), leaves)

    return evaluated


def in_onnx(
    function: Function, example: Sequence[Tensor], free: Sequence[Sequence[int]] | None = None
) -> Function:
    """``function`` as onnxruntime computes it; ``free`` axes of each operand may take any length, equal ones one."""
    with quiet():
        lengths = None if free is None else [_by_length(t, axes) for t, axes in zip(example, free, strict=True)]
        exported = export_function(function, tuple(example), onnx_decompositions(), lengths)
        results = len(exported.graph_signature.user_outputs)
        inputs, outputs = [f"in{i}" for i in range(len(example))], [f"out{i}" for i in range(results)]
        data = to_onnx(exported, inputs, outputs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(*operands: Tensor) -> tuple[Tensor, ...]:
        feed = {name: operand.numpy() for name, operand in zip(inputs, operands, strict=True)}
        return tuple(torch.as_tensor(array) for array in session.run(None, feed))

    return run


def _by_length(tensor: Tensor, axes: Sequence[int]) -> dict[int, Length]:
    return {axis: Length(0, ((f"n{tensor.shape[axis]}", 1),)) for axis in axes}


def in_executorch(function: Function, example: Sequence[Tensor]) -> Function:
    """``function`` as ExecuTorch computes it."""
    from executorch.extension.pybindings import _C

    with quiet():
        data = to_executorch(trace_function(function, tuple(example), executorch_decompositions()))
        program = _C._load_program_from_buffer(data)
        method = program.load_method("forward")

    def run(*operands: Tensor, _alive: object = (data, program)) -> tuple[Tensor, ...]:
        return tuple(tensor.clone() for tensor in method(operands))

    return run


def largest_difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Relative to the largest entry of each tensor."""
    assert [tensor.shape for tensor in ours] == [tensor.shape for tensor in theirs]
    pairs = zip(ours, theirs, strict=True)
    return max(float((a - b).abs().max() / (b.abs().max() + 1e-6)) for a, b in pairs)
