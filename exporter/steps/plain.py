"""The plain train step: one step of the optimiser on the kept entries of every tensor."""

from torch import Tensor

from exporter.forward import training_forward, weighted_mean
from exporter.source import Source, Traceable
from exporter.steps._parts import Arguments
from exporter.steps._parts import build as build_step

__all__ = ["build"]


def build(source: Source) -> Traceable:
    """Minimise sum(w l) / sum(w) over the batch."""

    def objective(arguments: Arguments) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        inputs = arguments.inputs
        outputs, statistics = training_forward(source, arguments.tensors, inputs["x"], inputs["scale"])
        losses = source.loss.per_sample(outputs, inputs["y"], *arguments.loss_inputs(source))
        loss = weighted_mean(losses, inputs["sample_weight"])
        return loss, (loss, statistics)

    return build_step(source, "plain", objective)
