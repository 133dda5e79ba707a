"""torch eager: exported programs, one for any width and batch, interpreted operation by operation."""

import io

import torch

from edge_fl.core.bundle import Program
from exporter.lower import Lowered, Report, Request
from exporter.recurrent import unrolled
from exporter.source import Traceable
from exporter.trace import export_symbolic

__all__ = ["lower"]


def lower(request: Request, report: Report) -> Lowered:
    """One ``.pt2`` a step variant, and one that evaluates."""
    lowered: Lowered = []
    for step in request.steps:
        report(f"train step '{step.variant}'")
        program = Program(
            f"torch_eager/step-{step.variant}.pt2", "step", step.inputs, step.outputs, variant=step.variant
        )
        lowered.append((program, _saved(step)))
    report("evaluation")
    lowered.append(
        (
            Program("torch_eager/eval.pt2", "eval", request.evaluation.inputs, request.evaluation.outputs),
            _saved(request.evaluation),
        )
    )
    return lowered


def _saved(program: Traceable) -> bytes:
    with unrolled():
        exported = export_symbolic(program, {})
    exported.example_inputs = None  # weights of no meaning, which would be saved along
    file = io.BytesIO()
    torch.export.save(exported, file)
    return file.getvalue()
