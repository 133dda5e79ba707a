"""What a robust rule is: a centre of each entry, or a weight of each update.

A robust rule does not replace the method's own rule. It replaces the sum of weighted changes that the method's rule
starts from, so that what few hold, or nobody holds, still counts as the method has it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import ConfigError
from edge_fl.core.registry import Registry

__all__ = ["ROBUST", "Block", "EntryRule", "RobustRule", "UpdateRule", "Updates", "open_robust", "robust_names"]


@dataclass(frozen=True)
class Block:
    """Some rows of one tensor, of all K updates of a round.

    ``values`` (``[K, r, S]`` float32) are changes, clipped and discounted, and 0 where an update does not hold an
    entry. ``held`` (``[K, r, S]`` bool) says where it does.
    """

    values: NDArray[np.float32]
    held: NDArray[np.bool_]


class Updates(Protocol):
    """The updates of a round, in the order of client ids, read block by block as often as a rule likes."""

    @property
    def weights(self) -> NDArray[np.float64]:
        """What each counts in the method's own rule: ``[K]``."""
        ...

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[Block]:
        """All of them, a few rows of a tensor at a time."""
        ...


class RobustRule(ABC):
    """Extend :class:`EntryRule` or :class:`UpdateRule`, not this.

    Parameters
    ----------
    attackers
        The share of hostile updates that the rule is to withstand, in [0, 0.5).

    Attributes
    ----------
    name
        What it is called.
    """

    name: str

    def __init__(self, attackers: float) -> None:
        if not 0 <= attackers < 0.5:
            raise ConfigError(f"The share of attackers that a rule withstands is in [0, 0.5), not {attackers:g}.")
        self.attackers = attackers


class EntryRule(RobustRule):
    """Finds a centre of each entry by itself, over the updates that hold the entry.

    Attributes
    ----------
    needs
        Entries that fewer updates hold are averaged.
    """

    needs = 5

    @abstractmethod
    def centre(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """The centre of each of n entries: float32 ``[n, k]``, each row in ascending order, to float64 ``[n]``."""


class UpdateRule(RobustRule):
    """Weighs each update as a whole; the method's rule then has their sum."""

    @abstractmethod
    def weigh(self, updates: Updates) -> NDArray[np.float64]:
        """How many times each update counts, besides its weight: ``[K]`` float64, 0 or more, not all 0.

        The result may not depend on the number of threads.
        """


ROBUST: Registry[RobustRule] = Registry(
    "robust rule", "edge_fl.aggregation.robust", "RULE", RobustRule, needs=("name",), group="edge_fl.robust"
)


def robust_names() -> list[str]:
    """The robust rules that are known here."""
    return ROBUST.names()


def open_robust(name: str, attackers: float) -> RobustRule:
    """The rule ``name`` that withstands a share of ``attackers``; ConfigError when there is none, or no such share."""
    return ROBUST.find(name)(attackers)
