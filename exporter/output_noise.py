"""Which layers of a model can be trained with noise on their outputs, and what that noise looks like."""

from collections import Counter
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from edge_fl.core.layout import Segment
from edge_fl.core.layout import Tensor as Spec
from exporter.forward import training_forward
from exporter.source import Source, batch_ports, dropout_ports, scalar, tensor_ports

__all__ = ["describe_outputs", "layer_of"]


def describe_outputs(source: Source) -> tuple[Spec, ...]:
    """The outputs of every Linear and Conv2d layer, without their batch axis, by the name of the layer's weight.

    Left out is a layer that a forward pass calls more than once or never, one whose weight is frozen or another's too,
    and one whose outputs do not begin with the batch axis.
    """
    seen: dict[str, list[tuple[int, ...]]] = {}
    hooks = []
    owners = Counter(
        id(parameter) for module in source.module.modules() for parameter in module._parameters.values()
    )
    for name, module in source.module.named_modules():
        trained = type(module) in (nn.Linear, nn.Conv2d) and module.weight.requires_grad
        if trained and owners[id(module.weight)] == 1:
            hooks.append(module.register_forward_hook(_noting(seen.setdefault(name, []))))
    batch = next(number for number in count(3) if number not in source.lengths)  # to know its axis by
    ports = (*tensor_ports(source.layout), *batch_ports(source), *dropout_ports(source), scalar("scale"))
    inputs = {port.name: port.example(source.full, batch) for port in ports}
    try:
        with torch.no_grad():
            training_forward(source, {t.name: inputs[f"tensor.{t.name}"] for t in source.layout.tensors}, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    once = {name: shapes[0] for name, shapes in seen.items() if len(shapes) == 1}
    return tuple(_described(source, name, shape[1:]) for name, shape in once.items() if shape[0] == batch)


def layer_of(outputs: Spec) -> str:
    """The name of the layer that ``outputs`` are of; "" if it is the model."""
    return outputs.name.rpartition(".")[0]


def _noting(shapes: list[tuple[int, ...]]) -> Any:
    def note(_: nn.Module, __: tuple[Tensor, ...], outputs: Tensor) -> None:
        shapes.append(tuple(outputs.shape))

    return note


def _described(source: Source, layer: str, shape: tuple[int, ...]) -> Spec:
    weight = source.layout.tensor(f"{layer}.weight" if layer else "weight")
    units = (
        0 if len(weight.shape) > 2 else len(shape) - 1
    )  # a convolution's filters come first, a linear's units last
    axes = tuple(weight.units[0] if axis == units else (Segment(None, inner=n),) for axis, n in enumerate(shape))
    return Spec(weight.name, shape, axes, axes)
