"""What the plain train step descends, by itself: for runtimes that differentiate it in their own way."""

from torch import Tensor

from edge_fl.errors import UnsupportedModelError
from exporter.forward import training_loss
from exporter.source import Traceable, batch_ports, loss_ports, scalar, tensor_ports

__all__ = ["build_objective"]


def build_objective(step: Traceable, runtime: str) -> Traceable:
    """Build ``(tensors..., x, y, sample_weight, scale, ...) -> (loss, new statistics...)`` of a plain ``step``.

    The loss is sum(w l) / sum(w). Raises UnsupportedModelError, naming ``runtime``, when ``step`` is not plain.
    """
    if step.variant != "plain":
        raise UnsupportedModelError(f"The runtime '{runtime}' has no '{step.variant}' train step: only 'plain'.")
    source = step.source
    ports = (
        *tensor_ports(source.layout),
        *batch_ports(source),
        scalar("scale"),
        *loss_ports(source),
    )

    def objective(*inputs: Tensor) -> tuple[Tensor, ...]:
        named = {port.name: tensor for port, tensor in zip(ports, inputs, strict=True)}
        tensors = {n.removeprefix("tensor."): t for n, t in named.items() if n.startswith("tensor.")}
        loss, statistics = training_loss(source, tensors, named)
        return (loss, *(statistics[tensor.name].detach() for tensor in source.tracked))

    outputs = ("loss", *(f"new.tensor.{tensor.name}" for tensor in source.tracked))
    return Traceable(source, "step", objective, ports, outputs)
