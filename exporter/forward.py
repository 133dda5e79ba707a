"""The model as a function of its kept entries, as every program needs it."""

import copy

from torch import Tensor, nn
from torch.func import functional_call

from exporter.source import Source, Traceable, parameter_input

__all__ = ["build_evaluation", "scaled_forward", "weighted_mean"]


def scaled_forward(source: Source, kept: tuple[Tensor, ...], x: Tensor, scale: Tensor) -> Tensor:
    """The outputs ``[B, classes]`` under kept entries, each block's layers' outputs multiplied by ``scale``."""

    def multiply(_: nn.Module, __: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        return outputs * scale

    hooks = [source.module.get_submodule(name).register_forward_hook(multiply) for name in source.producers]
    try:
        return _outputs(source.module, source, kept, x)
    finally:
        for hook in hooks:
            hook.remove()


def weighted_mean(losses: Tensor, sample_weight: Tensor) -> Tensor:
    """sum(w l) / sum(w), both ``[B]``: a sample of weight 0 is padding."""
    return (losses * sample_weight).sum() / sample_weight.sum()


def build_evaluation(source: Source) -> Traceable:
    """Build ``(params..., x, y, sample_weight) -> (loss, outputs [B, classes])`` of the full model."""
    parameters = tuple(parameter_input(tensor.name) for tensor in source.layout.tensors)
    module = copy.deepcopy(source.module).eval()

    def evaluate(*inputs: Tensor) -> tuple[Tensor, ...]:
        x, y, sample_weight = inputs[len(parameters) :]
        outputs = _outputs(module, source, inputs[: len(parameters)], x)
        return weighted_mean(source.loss.per_sample(outputs, y), sample_weight), outputs

    inputs = (*parameters, "x", "y", "sample_weight")
    return Traceable(source, "eval", evaluate, inputs, ("loss", "outputs"))


def _outputs(module: nn.Module, source: Source, kept: tuple[Tensor, ...], x: Tensor) -> Tensor:
    names = [tensor.name for tensor in source.layout.tensors]
    outputs: Tensor = functional_call(module, dict(zip(names, kept, strict=True)), (x,))
    return outputs
