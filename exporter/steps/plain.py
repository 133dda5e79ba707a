"""The plain train step: one step of the optimiser on the kept entries of every tensor."""

from torch import Tensor

from exporter.forward import training_loss
from exporter.source import Source, Step
from exporter.steps._parts import Arguments
from exporter.steps._parts import build as build_step

__all__ = ["build"]


def build(source: Source) -> Step:
    """Minimise sum(w l) / sum(w) over the batch."""

    def objective(arguments: Arguments) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        loss, statistics = training_loss(source, arguments.tensors, arguments.inputs)
        return loss, (loss, statistics)

    return build_step(source, "plain", objective)
