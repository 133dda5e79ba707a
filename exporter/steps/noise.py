"""FedBIAD's train step (Algorithm 1, lines 16 and 17): the gradient at sampled weights moves their means."""

from torch import Tensor

from exporter.forward import training_loss
from exporter.source import Port, Source, Step
from exporter.steps._parts import Arguments
from exporter.steps._parts import build as build_step

__all__ = ["build"]


def build(source: Source) -> Step:
    """Minimise the loss at theta = U + noise; ``noise.NAME`` has the shape of each parameter's kept entries."""
    parameters = source.layout.parameters

    def objective(arguments: Arguments) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        theta = dict(arguments.tensors)
        for tensor in parameters:
            theta[tensor.name] = theta[tensor.name] + arguments.inputs[f"noise.{tensor.name}"]
        loss, statistics = training_loss(source, theta, arguments.inputs)
        return loss, (loss, statistics)

    return build_step(
        source, "noise", objective, extra=tuple(Port(f"noise.{t.name}", t.units) for t in parameters)
    )
