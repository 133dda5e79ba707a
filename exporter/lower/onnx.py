"""ONNX for plain onnxruntime: one program for any width and batch, with the weights as inputs."""

import math
from collections.abc import Sequence

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx_ir.passes.common import NameFixPass
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx.experimental import _config
from torch.onnx import ONNXProgram
from torch.onnx._internal.exporter._core import _exported_program_to_onnx_program
from torch.onnx._internal.exporter._fx_passes import decompose_with_registry, remove_assertion_nodes
from torch.onnx._internal.exporter._ir_passes import rename_inputs

from edge_fl.core.bundle import Program
from edge_fl.core.errors import UnsupportedModelError
from exporter.decompositions import Decompositions, core_decompositions
from exporter.lower import Lowered, Report, Request
from exporter.onnx_casts import widen_at_each_use
from exporter.onnx_promotion import promote_types
from exporter.onnx_shapes import settle_shapes
from exporter.onnx_simplify import simplify
from exporter.open_lengths import FixedUnitsError
from exporter.sentence import first_line
from exporter.source import Traceable
from exporter.torchlib import translations
from exporter.trace import TracedProgram, export_symbolic

__all__ = ["lower", "onnx_decompositions", "to_onnx", "translate"]

# What onnxruntime 1.19 still reads; onnx itself would write a version that not even the newest one does.
_IR_VERSION = 10
_LARGEST_CONSTANT = 1024
_aten = torch.ops.aten


def lower(request: Request, report: Report) -> Lowered:
    """One ``.onnx`` a step variant, and one that evaluates.

    Raises
    ------
    UnsupportedModelError
        When an operation has no translation, or kept units would not stay free.
    """
    lowered: Lowered = []
    for step in request.steps:
        report(f"train step '{step.variant}'")
        program = Program(
            f"onnx/step-{step.variant}.onnx",
            "step",
            step.inputs,
            step.outputs,
            variant=step.variant,
            micro_batch=step.multiple,
        )
        lowered.append((program, _model(step)))
    for kind, whole in request.whole(report):
        lowered.append((Program(f"onnx/{kind}.onnx", kind, whole.inputs, whole.outputs), _model(whole)))
    return lowered


def onnx_decompositions() -> Decompositions:
    """What is traced in place of operations that ONNX lacks, or that onnxruntime runs slowly."""
    table = core_decompositions(gather=True)
    # A Gemm is faster than the product and sum that it decomposes into.
    table.pop(_aten.addmm.default, None)
    table[_aten.squeeze.dims] = _squeeze
    table[_aten.copy.default] = _copy
    return table


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Torch's translation forgets to expand, as in ``mask[:, :4] = 1``."""
    del non_blocking
    return source.to(x.dtype).expand(x.shape)


def _squeeze(x: Tensor, dims: Sequence[int]) -> Tensor:
    dropped = {dim % x.dim() for dim in dims if x.shape[dim] == 1}
    return x.reshape([length for axis, length in enumerate(x.shape) if axis not in dropped])


def _model(program: Traceable) -> bytes:
    try:
        exported = export_symbolic(program, onnx_decompositions(), saved=False)
        return to_onnx(exported, program.inputs, program.outputs)
    except FixedUnitsError:
        raise
    except UnsupportedModelError:
        # Perhaps for want of one of torch's own decompositions, which take a second trace.
        exported = export_symbolic(program, onnx_decompositions())
        return to_onnx(exported, program.inputs, program.outputs)


def to_onnx(exported: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """The program as an ONNX file with these names.

    Raises UnsupportedModelError when an operation has no translation, or weights were frozen in.
    """
    for held in exported.constants.values():
        if isinstance(held, Tensor) and held.is_floating_point() and held.numel() > _LARGEST_CONSTANT:
            raise UnsupportedModelError(
                f"The model's forward reads a tensor of shape {tuple(held.shape)} that is no parameter or buffer: "
                "register it as a buffer."
            )
    model = translate(exported, inputs, outputs)
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def translate(exported: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """The program in ONNX, with these names and without its compiler's traces.

    Raises UnsupportedModelError when an operation has no translation.
    """
    try:
        translated = _translated(exported)
    except Exception as error:  # torch raises many types on what it cannot translate
        raise UnsupportedModelError(
            f"ONNX has no translation for an operation of the model: {first_line(error)}."
        ) from error
    rename_inputs(translated.model, inputs)
    simplify(translated.model)
    # Only now: a value that is two outputs has become two values, a name each.
    for value, name in zip(translated.model.graph.outputs, outputs, strict=True):
        value.name = name
    NameFixPass()(translated.model)
    model = translated.model_proto
    model.ir_version = _IR_VERSION
    del model.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in [*model.graph.value_info, *model.graph.input, *model.graph.output]:
        del value.metadata_props[:]
    settle_shapes(model)
    _fill_uniform(model.graph)
    widen_at_each_use(model.graph)
    return model


def _translated(exported: ExportedProgram) -> ONNXProgram:
    """As torch.onnx.export does, without collecting translations and decompositions anew, or computing known values."""
    with _config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]  # lengths of 0 and 1 are like others
        if not isinstance(exported, TracedProgram):  # of which everything is decomposed
            exported = decompose_with_registry(exported, translations())
        promote_types(exported.graph_module)
        remove_assertion_nodes(exported.graph_module)
    return _exported_program_to_onnx_program(exported, registry=translations())


def _fill_uniform(graph: onnx.GraphProto) -> None:
    """Have the program fill large tensors of one value, such as where an embedding's gradient begins, itself."""
    for tensor in list(graph.initializer):
        if tensor.data_type != onnx.TensorProto.FLOAT or math.prod(tensor.dims) <= _LARGEST_CONSTANT:
            continue
        values = numpy_helper.to_array(tensor).reshape(-1)
        if (values == values[0]).all():
            shape = numpy_helper.from_array(np.array(tensor.dims, dtype=np.int64), f"{tensor.name}_shape")
            value = numpy_helper.from_array(values[:1])
            node = onnx.helper.make_node("ConstantOfShape", [shape.name], [tensor.name], value=value)
            graph.initializer.remove(tensor)
            graph.initializer.append(shape)
            graph.node.insert(0, node)
