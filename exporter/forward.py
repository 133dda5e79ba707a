"""The model as a function of its kept entries, as every program needs it."""

import copy
from collections.abc import Mapping

from torch import Tensor, nn
from torch.func import functional_call

from exporter.adapt import new_statistics
from exporter.source import Source, Traceable, batch_ports, tensor_ports

__all__ = ["build_evaluation", "training_forward", "training_loss", "weighted_mean"]


def training_forward(
    source: Source, tensors: Mapping[str, Tensor], x: Tensor, scale: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The outputs under kept entries, and the tracked statistics anew.

    The outputs of every module whose units can be dropped are multiplied by ``scale``.
    """

    def multiply(_: nn.Module, __: tuple[Tensor, ...], outputs: Tensor | tuple[Tensor, ...]) -> object:
        if isinstance(outputs, Tensor):
            return outputs * scale
        return (outputs[0] * scale, *outputs[1:])  # a recurrent layer; its last state is not scaled

    hooks = [source.module.get_submodule(name).register_forward_hook(multiply) for name in source.scaled]
    try:
        outputs: Tensor = functional_call(source.module, dict(tensors), (x,))
    finally:
        for hook in hooks:
            hook.remove()
    statistics = new_statistics(
        source.module, tensors
    )  # also those that nobody wants: none may stay in the module
    return outputs, statistics if source.tracked else {}


def training_loss(
    source: Source, tensors: Mapping[str, Tensor], inputs: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """sum(w l) / sum(w) over the batch of a step's ``inputs``, and the tracked statistics anew."""
    outputs, statistics = training_forward(source, tensors, inputs["x"], inputs["scale"])
    losses = source.loss.per_sample(outputs, inputs["y"], *(inputs[name] for name in source.loss.inputs))
    return weighted_mean(losses, inputs["sample_weight"]), statistics


def weighted_mean(losses: Tensor, sample_weight: Tensor) -> Tensor:
    """sum(w l) / sum(w), both ``[B]``: a sample of weight 0 is padding."""
    return (losses * sample_weight).sum() / sample_weight.sum()


def build_evaluation(source: Source) -> Traceable:
    """Build ``(tensors..., x, y, sample_weight) -> (loss, outputs [B, ...])`` of the full model."""
    names = [tensor.name for tensor in source.layout.tensors]
    module = copy.deepcopy(source.module).eval()
    # What a loss takes besides the targets is about a client's training, not about the model's quality.
    free = source.loss.inputs

    def evaluate(*inputs: Tensor) -> tuple[Tensor, ...]:
        x, y, sample_weight = inputs[len(names) :]
        outputs: Tensor = functional_call(module, dict(zip(names, inputs, strict=False)), (x,))
        ones = [outputs.new_ones(source.classes) for _ in free]
        return weighted_mean(source.loss.per_sample(outputs, y, *ones), sample_weight), outputs

    ports = (*tensor_ports(source.layout), *batch_ports(source))
    return Traceable(source, "eval", evaluate, ports, ("loss", "outputs"))
