"""Losses by name, each a value per sample, so that a padded sample can weigh nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from edge_fl.bundle import Input
from edge_fl.errors import ConfigError

__all__ = ["Loss", "find_loss"]


@dataclass(frozen=True)
class Loss:
    """A loss and what it is computed from.

    ``per_sample`` takes the outputs ``[B, classes]`` and the targets ``[B, *target.shape]`` and gives ``[B]``.
    """

    name: str
    target: Input
    per_sample: Callable[[Tensor, Tensor], Tensor]


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    # Not cross_entropy: its ignore_index would cost every step a handful of comparisons.
    return -functional.log_softmax(outputs, dim=1).gather(1, y.unsqueeze(1)).squeeze(1)


_LOSSES = (Loss("cross_entropy", Input(shape=(), dtype="int64"), _cross_entropy),)


def find_loss(name: str) -> Loss:
    """The loss called ``name``; raises ConfigError when there is none."""
    for loss in _LOSSES:
        if loss.name == name:
            return loss
    raise ConfigError(f"There is no loss '{name}'; there are {', '.join(loss.name for loss in _LOSSES)}.")
