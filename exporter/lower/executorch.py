"""ExecuTorch with XNNPACK: a static program for each width and batch."""

from executorch.exir import EdgeProgramManager
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument

from edge_fl.core.bundle import Program
from edge_fl.core.errors import UnsupportedModelError
from exporter.forward import scaled_where_smaller
from exporter.lower import Lowered, Report, Request, kept_at
from exporter.lower._edge import UNCHECKED, to_edge
from exporter.lower._reshapes import sink_reshapes
from exporter.lower._sums import sum_by_dense_layers
from exporter.lower._transposes import share_transposes
from exporter.lower._xnnpack import delegate
from exporter.lower.executorch_decompositions import executorch_decompositions
from exporter.recurrent import unrolled
from exporter.sentence import first_line
from exporter.source import Traceable
from exporter.trace import export_static

__all__ = ["EVALUATION_BATCH", "lower", "to_executorch"]

EVALUATION_BATCH = 200
"""Larger ones are no faster, and a phone's memory is small."""


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


def _compiled(program: Traceable, kept: dict[str, int], batch: int) -> bytes:
    with unrolled(), scaled_where_smaller():  # it has no loops
        exported = export_static(program, kept, batch, executorch_decompositions())
    return to_executorch(exported)


def to_executorch(exported: ExportedProgram) -> bytes:
    """A program traced under :func:`executorch_decompositions` as a ``.pte`` file; it cannot be used any more.

    Raises UnsupportedModelError when an operation has no kernel.
    """
    try:
        _lighten(exported)
        manager = EdgeProgramManager(delegate(to_edge(exported)), compile_config=UNCHECKED)
        return bytes(manager.to_executorch().buffer)
    except Exception as error:  # its passes raise many types on what they do not know
        raise UnsupportedModelError(
            f"ExecuTorch cannot compile an operation of the model: {first_line(error)}."
        ) from error


def _lighten(exported: ExportedProgram) -> None:
    """Leave out copies that XNNPACK would make, and columns that it would pad, in place."""
    sink_reshapes(exported.graph)
    share_transposes(exported.graph)
    sum_by_dense_layers(exported.graph_module)
    exported.graph.eliminate_dead_code()
    results = next(node for node in exported.graph.nodes if node.op == "output").args[0]
    for specification, result in zip(exported.graph_signature.output_specs, results, strict=True):
        specification.arg = TensorArgument(result.name)
