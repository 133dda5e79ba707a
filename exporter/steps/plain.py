"""The plain train step: one step of stochastic gradient descent on the kept entries of every tensor."""

from torch import Tensor
from torch.func import grad_and_value

from exporter.forward import scaled_forward, weighted_mean
from exporter.source import Source, Traceable, parameter_input

__all__ = ["build"]


def build(source: Source) -> Traceable:
    """Build ``(params..., x, y, sample_weight, lr, scale) -> (loss, new...)``.

    loss = sum(w l) / sum(w) over the batch before the step; new = param - lr * d loss / d param. ``scale``
    multiplies the outputs of every layer whose units can be dropped.
    """
    parameters = tuple(parameter_input(tensor.name) for tensor in source.layout.tensors)

    def step(*inputs: Tensor) -> tuple[Tensor, ...]:
        kept = inputs[: len(parameters)]
        x, y, sample_weight, lr, scale = inputs[len(parameters) :]

        def mean_loss(kept: tuple[Tensor, ...]) -> Tensor:
            outputs = scaled_forward(source, kept, x, scale)
            return weighted_mean(source.loss.per_sample(outputs, y), sample_weight)

        gradients, loss = grad_and_value(mean_loss)(kept)
        return (loss, *(w - lr * g for w, g in zip(kept, gradients, strict=True)))

    inputs = (*parameters, "x", "y", "sample_weight", "lr", "scale")
    outputs = ("loss", *(f"new.{tensor.name}" for tensor in source.layout.tensors))
    return Traceable(source, "step", step, inputs, outputs)
