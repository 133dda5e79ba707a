"""FjORD's train step with self-distillation (Horvath et al., section 3.3): a narrower model learns from a wider.

The student is the units of ``student.BLOCK`` (1 for kept, 0 for dropped) of those that the step is given, masked
in place: the two run on the same tensors.
"""

import torch
from torch import Tensor
from torch.nn import functional

from edge_fl.core.layout import Segment
from edge_fl.core.layout import Tensor as Spec
from exporter.forward import mean_of, training_forward
from exporter.source import Port, Source, Step, scalar, width_ports
from exporter.steps._parts import Arguments
from exporter.steps._parts import build as build_step

__all__ = ["build"]


def build(source: Source) -> Step:
    """Minimise ``CE(teacher) + (1 - alpha) CE(student) + alpha T^2 KL``, all means over the batch.

    KL is that of the student's softmax from the teacher's at ``temperature`` T (``forward`` 1), or of the
    teacher's from the student's (``forward`` 0); the teacher is trained too. The loss reported is the student's
    cross-entropy. BatchNorm's statistics are the teacher's; where each width has its own, those of ``student_width``
    (``[W]``, as ``width`` is the teacher's) become the student's.
    """
    blocks = source.layout.blocks
    extra = (
        *(Port(f"student.{block.name}", ((Segment(block.name),),)) for block in blocks),
        *(scalar(name) for name in ("alpha", "temperature", "forward")),
        *width_ports(source, "student_width"),
    )

    def objective(arguments: Arguments) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        inputs = arguments.inputs
        more = arguments.loss_inputs(source)
        teacher, statistics = training_forward(source, arguments.tensors, inputs)
        narrow = {t.name: _masked(arguments.tensors[t.name], t, inputs) for t in source.layout.tensors}
        slim_inputs = {**inputs, **({"width": inputs["student_width"]} if source.statistic_widths else {})}
        student, after_both = training_forward(source, {**arguments.tensors, **narrow, **statistics}, slim_inputs)
        wide, slim = (
            mean_of(source.loss.per_sample(outputs, inputs["y"], *more), inputs) for outputs in (teacher, student)
        )
        distance = mean_of(_divergence(source.predictions(teacher), source.predictions(student), inputs), inputs)
        alpha, temperature = inputs["alpha"], inputs["temperature"]
        total = wide + (1 - alpha) * slim + alpha * temperature * temperature * distance
        return total, (slim, after_both if source.statistic_widths else statistics)

    return build_step(source, "distil", objective, extra=extra)


def _masked(kept: Tensor, tensor: Spec, inputs: dict[str, Tensor]) -> Tensor:
    """The tensor with the rows of the student's dropped units at zero."""
    if tensor.role == "statistic":
        return kept
    for axis, segments in enumerate(tensor.rows):
        if all(segment.block is None for segment in segments):
            continue
        parts = []
        for segment in segments:
            mask = kept.new_ones(segment.inner) if segment.block is None else inputs[f"student.{segment.block}"]
            mask = mask.reshape(1, -1, 1).expand(segment.outer, -1, 1 if segment.block is None else segment.inner)
            parts.append(mask.reshape(-1))
        shape = [1] * kept.dim()
        shape[axis] = -1
        kept = kept * (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(shape)
    return kept


def _divergence(teacher: Tensor, student: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """KL at the temperature between softmaxes over the last axis, ``[B]`` (a mean over any axes between)."""
    wide = functional.log_softmax(teacher / inputs["temperature"], dim=-1)
    slim = functional.log_softmax(student / inputs["temperature"], dim=-1)
    gap = wide - slim
    forward, backward = (wide.exp() * gap).sum(dim=-1), -(slim.exp() * gap).sum(dim=-1)
    mixed = inputs["forward"] * forward + (1 - inputs["forward"]) * backward
    return mixed.reshape(mixed.shape[0], -1).mean(dim=1)
