"""Train steps of runtimes that give gradients and no more: what a step makes of them, in numpy.

It is torch.optim's SGD and Adam, as in the programs that hold their optimiser.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.adam import adam
from edge_fl.core.bundle import Optimizer, Program, slot_name
from edge_fl.runtimes.base import Compiled

__all__ = ["Differentiate", "Gradients", "step_of"]

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Gradients:
    """The loss, gradients by the names of trained inputs (``tensor.NAME``), and statistics by ``new.tensor.NAME``."""

    loss: NDArray[np.float32]
    gradients: Arrays
    statistics: Arrays


Differentiate = Callable[[Mapping[str, NDArray[Any]]], Gradients]
"""From a step's inputs by name; nothing it gives may be written again by its next call."""


def step_of(program: Program, optimizer: Optimizer, differentiate: Differentiate) -> Compiled:
    """The whole step that ``program`` names the inputs and outputs of."""

    def run(inputs: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        named = dict(zip(program.inputs, inputs, strict=True))
        found = differentiate(named)
        new = _updated(optimizer, named, found.gradients)
        values = {"loss": found.loss, **found.statistics, **{f"new.{name}": array for name, array in new.items()}}
        return [values[name] for name in program.outputs]

    return run


def _updated(optimizer: Optimizer, inputs: Arrays, gradients: Arrays) -> dict[str, NDArray[np.float32]]:
    """New values of what is trained, by name, and new slots (:func:`edge_fl.core.bundle.slot_name`)."""
    factor = 1.0 if optimizer.clip is None else _clipping(gradients, optimizer.clip)
    update = _adam if optimizer.name == "adam" else _sgd
    new: dict[str, NDArray[np.float32]] = {}
    for name, gradient in gradients.items():
        direction = gradient if optimizer.clip is None else gradient * factor
        if optimizer.weight_decay:
            direction = direction + optimizer.weight_decay * inputs[name]
        new.update(update(optimizer, inputs, name, direction))
    return new


def _clipping(gradients: Arrays, largest: float) -> float:
    """What every gradient is multiplied by, as torch.nn.utils.clip_grad_norm_ does."""
    squared = sum(float(np.vdot(gradient, gradient)) for gradient in gradients.values())
    return min(1.0, largest / (math.sqrt(squared) + 1e-6))


def _sgd(
    optimizer: Optimizer, inputs: Arrays, name: str, gradient: NDArray[np.float32]
) -> dict[str, NDArray[np.float32]]:
    new = {}
    if optimizer.momentum:
        slot = slot_name("momentum", name)
        gradient = optimizer.momentum * inputs[slot] + gradient
        new[slot] = gradient
    new[name] = inputs[name] - inputs["lr"] * gradient
    return new


def _adam(
    optimizer: Optimizer, inputs: Arrays, name: str, gradient: NDArray[np.float32]
) -> dict[str, NDArray[np.float32]]:
    slots = [slot_name(slot, name) for slot in optimizer.slots]
    step, *moments = adam(
        gradient,
        inputs[slots[0]],
        inputs[slots[1]],
        number=float(inputs["number"]),
        lr=float(inputs["lr"]),
        betas=optimizer.betas,
        eps=optimizer.eps,
    )
    return {name: inputs[name] - step, **dict(zip(slots, moments, strict=True))}
