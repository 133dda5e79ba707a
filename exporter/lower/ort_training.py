"""onnxruntime-training: the forward pass in ONNX, to which onnxruntime itself adds the gradients.

Convolutions and layer normalisation stay whole, as onnxruntime has kernels for their gradients. Pooling does not: in
1.19.2 its gradient of MaxPool is wrong, and that of AveragePool ends the process.
"""

from collections.abc import Sequence

import onnx
import torch
from torch import Tensor

from edge_fl.core.bundle import Program
from edge_fl.core.errors import UnsupportedModelError
from edge_fl.runtimes.ort_training import training_python
from exporter.decompositions import Decompositions
from exporter.gradient_graph import gradient_graph
from exporter.lower import Lowered, Report, Request
from exporter.lower.onnx import onnx_decompositions, to_onnx
from exporter.recurrent import unrolled
from exporter.source import Step
from exporter.trace import export_symbolic

__all__ = ["lower"]

_aten = torch.ops.aten
_WHOLE = (_aten.convolution.default, _aten.native_layer_norm.default)


def lower(request: Request, report: Report) -> Lowered:
    """One ``.onnx`` a step variant, which gives the gradients of what it descends, and one that evaluates.

    Raises
    ------
    RuntimeMissingError
        When there is no environment with onnxruntime-training.
    UnsupportedModelError
        When an operation has no translation or no gradient, or kept units would not stay free.
    """
    lowered: Lowered = []
    for step in request.steps:
        report(f"train step '{step.variant}'")
        program = Program(
            f"ort_training/step-{step.variant}.onnx", "step", step.inputs, step.outputs, variant=step.variant
        )
        lowered.append((program, _gradients(step)))
    for kind, whole in request.whole(report):
        data = to_onnx(export_symbolic(whole, onnx_decompositions()), whole.inputs, whole.outputs)
        lowered.append((Program(f"ort_training/{kind}.onnx", kind, whole.inputs, whole.outputs), data))
    return lowered


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    positive = x.relu()
    return scale * (positive + alpha * (torch.exp((x - positive) * input_scale) - 1))


def _maximum(a: Tensor, b: Tensor) -> Tensor:
    """The gradient of equals goes to the first, as in torch's pooling; onnxruntime's own Max shares it."""
    return torch.where(a >= b, a, b)


def _table() -> Decompositions:
    table = {name: rule for name, rule in onnx_decompositions().items() if name not in _WHOLE}
    table[_aten.elu.default] = _elu  # onnxruntime has no gradient of it
    table[_aten.maximum.default] = _maximum
    return table


def _gradients(step: Step) -> bytes:
    objective = step.objective
    with unrolled():  # onnxruntime has no gradient of loops
        exported = export_symbolic(objective, _table(), saved=False)
    forward = to_onnx(exported, objective.inputs, objective.outputs)
    model = gradient_graph(training_python(), _with_moments(forward), objective.outputs[0], step.trained)
    _require_gradients(model, step.trained)
    return model


def _with_moments(data: bytes) -> bytes:
    """The mean and deviation that onnxruntime's gradient of a layer normalisation reads, as its outputs."""
    model = onnx.load_from_string(data)
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            node.output.extend(f"{node.output[0]}.moment{i}" for i in range(len(node.output), 3))
    return bytes(model.SerializeToString())


def _require_gradients(data: bytes, parameters: Sequence[str]) -> None:
    given = {value.name for value in onnx.load_from_string(data).graph.output}
    for name in parameters:
        if f"{name}_grad" not in given:
            raise UnsupportedModelError(f"The loss does not depend on '{name}': take it out of the model.")
