"""What every train step is made of: its ports, its arguments by name, and the update at its end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.func import grad_and_value

from edge_fl.core.bundle import FROZEN_TENSOR, TENSOR, slot_name
from edge_fl.core.layout import Tensor as Spec
from exporter import optimizers
from exporter.checkpoint import marked_forward
from exporter.source import (
    Port,
    Source,
    Step,
    Traceable,
    batch_ports,
    dropout_ports,
    frozen_ports,
    loss_ports,
    scalar,
    tensor_ports,
)
from exporter.steps.micro_batches import accumulate, in_one_pass

__all__ = ["Arguments", "Objective", "build"]


@dataclass(frozen=True)
class Arguments:
    """A step's arguments: every kept tensor by its name, frozen ones too, and every other input by its own."""

    tensors: dict[str, Tensor]
    inputs: dict[str, Tensor]

    def loss_inputs(self, source: Source) -> list[Tensor]:
        """What the loss takes besides outputs and targets."""
        return [self.inputs[name] for name in source.loss.inputs]


Objective = Callable[[Arguments], tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]]
"""From arguments to what is minimised, and beside it the loss to report and the statistics anew."""


def build(
    source: Source,
    variant: str,
    objective: Objective,
    *,
    trained: tuple[Port, ...] = (),
    extra: tuple[Port, ...] = (),
) -> Step:
    """Build ``(tensors..., slots..., x, y, sample_weight, lr, scale, ...) -> (loss, new tensors..., new slots...)``.

    Parameters
    ----------
    objective
        What the step descends.
    trained
        Ports of this variant only that the step moves as it moves the model's parameters, and gives anew.
    extra
        Other ports of this variant only.
    """
    moved = (*(Port(f"tensor.{tensor.name}", tensor.units) for tensor in source.layout.parameters), *trained)
    names = [port.name for port in moved]
    slots = [Port(slot_name(slot, p.name), p.axes) for slot in source.optimizer.slots for p in moved]
    ports = (
        *tensor_ports(source.layout),
        *trained,
        *frozen_ports(source),
        *slots,
        *batch_ports(source),
        scalar("lr"),
        scalar("scale"),
        *([scalar("number")] if source.optimizer.name == "adam" else []),
        *loss_ports(source),
        *dropout_ports(source),
        *extra,
    )

    alone = _alone(source, objective, (*trained, *extra))
    passed, batched = alone.ports, [port.name for port in alone.ports if port.batched]

    def minimised(
        values: tuple[Tensor, ...], inputs: Mapping[str, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        with marked_forward(source.module, source.checkpoint) as enter:
            given = {**inputs, "x": enter(inputs["x"])}
            return objective(_arguments({**given, **dict(zip(names, values, strict=True))}))

    def step(*inputs: Tensor) -> tuple[Tensor, ...]:
        named = _named(ports, inputs)

        old = tuple(named[name] for name in names)
        statistics: dict[str, Tensor] = {}
        if in_one_pass(source.micro_batch):
            gradients, (_, (loss, statistics)) = grad_and_value(minimised, has_aux=True)(old, named)
        else:  # of a model without statistics
            besides = {port.name: named[port.name] for port in passed if port.name not in names}
            gradients, loss = accumulate(minimised, old, besides, batched, source.micro_batch)
        new, kept = optimizers.apply(
            source.optimizer,
            old,
            gradients,
            {slot: [named[slot_name(slot, name)] for name in names] for slot in source.optimizer.slots},
            lr=named["lr"],
            number=named.get("number", named["lr"]),
        )
        anew = dict(zip(names, new, strict=True))
        anew.update({f"tensor.{name}": tensor for name, tensor in statistics.items()})
        remembered = (tensor for slot in source.optimizer.slots for tensor in kept[slot])
        return (loss, *(anew[name] for name in given), *remembered)

    given = [*(f"tensor.{tensor.name}" for tensor in _given(source)), *(port.name for port in trained)]
    outputs = ("loss", *(f"new.{name}" for name in (*given, *(port.name for port in slots))))
    return Step(source, "step", step, ports, outputs, variant, alone, tuple(names))


def _alone(source: Source, objective: Objective, extra: tuple[Port, ...]) -> Traceable:
    """``(tensors..., x, y, sample_weight, scale, ...) -> (minimised, loss, new statistics...)``."""
    held = (*tensor_ports(source.layout), *frozen_ports(source))
    ports = (*held, *batch_ports(source), scalar("scale"), *loss_ports(source), *dropout_ports(source), *extra)

    def evaluate(*inputs: Tensor) -> tuple[Tensor, ...]:
        minimised, (loss, statistics) = objective(_arguments(_named(ports, inputs)))
        return (minimised, loss.detach(), *(statistics[tensor.name].detach() for tensor in source.tracked))

    outputs = ("minimised", "loss", *(f"new.tensor.{tensor.name}" for tensor in source.tracked))
    return Traceable(source, "step", evaluate, ports, outputs)


def _given(source: Source) -> list[Spec]:
    """The tensors a step gives anew: all but statistics that are not tracked."""
    return [t for t in source.layout.tensors if t.role == "parameter" or t in source.tracked]


def _named(ports: tuple[Port, ...], inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {port.name: tensor for port, tensor in zip(ports, inputs, strict=True)}


def _arguments(named: Mapping[str, Tensor]) -> Arguments:
    tensors, inputs = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in named.items():
        kind, _, of = name.partition(".")
        if f"{kind}." in (TENSOR, FROZEN_TENSOR):
            tensors[of] = tensor
        else:
            inputs[name] = tensor
    return Arguments(tensors, inputs)
