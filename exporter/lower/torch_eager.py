"""torch eager: exported programs, one for any width and batch, interpreted operation by operation."""

from edge_fl.core.bundle import Program
from exporter.lower import Lowered, Report, Request
from exporter.program_file import program_bytes
from exporter.recurrent import unrolled
from exporter.source import Traceable
from exporter.steps.micro_batches import whole_batches
from exporter.trace import export_symbolic

__all__ = ["lower"]


def lower(request: Request, report: Report) -> Lowered:
    """One ``.pt2`` a step variant, and one that evaluates."""
    lowered: Lowered = []
    for step in request.steps:
        report(f"train step '{step.variant}'")
        program = Program(
            f"torch_eager/step-{step.variant}.pt2",
            "step",
            step.inputs,
            step.outputs,
            variant=step.variant,
            micro_batch=step.multiple,
        )
        lowered.append((program, _saved(step)))
    for kind, whole in request.whole(report):
        lowered.append((Program(f"torch_eager/{kind}.pt2", kind, whole.inputs, whole.outputs), _saved(whole)))
    return lowered


def _saved(program: Traceable) -> bytes:
    with unrolled(), whole_batches():
        return program_bytes(export_symbolic(program, {}))
