"""What few methods do: a class for each, to extend beside :class:`~edge_fl.methods.base.Method` or ``LocalHalf``.

What methods share with compressors (an optimiser on the server, a memory there) is in :mod:`edge_fl.core.server_half`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import Manifest
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Weights
from edge_fl.core.width_factor import MOST_FACTOR

__all__ = [
    "ChecksBundle",
    "ClientReport",
    "CollectsStatistics",
    "DrawsWithoutData",
    "LearnsFromReports",
    "MasksLabels",
    "NarrowsBlocks",
    "ReordersUnits",
    "SelectsEntries",
    "SendsEntries",
    "TrainsSlots",
    "TrainsWidths",
    "evaluated_width",
    "model_width",
    "width_factor",
]


@dataclass(frozen=True)
class ClientReport:
    """What the server half learns of one accepted update; ``sent`` is the frame's.

    ``seconds`` are from its task to its update: from the coordinator's restart, where the task is older, and None where
    the update is, too.
    """

    client: str
    tier: int
    samples: int
    loss: float
    pattern: Pattern
    sent: NDArray[np.bool_] | None = None
    seconds: float | None = None


class LearnsFromReports(ABC):
    """A method whose server half learns from updates."""

    @abstractmethod
    def learn(self, round: int, reports: Sequence[ClientReport]) -> None:
        """Take note of a closed round's updates, in the order of client ids."""


class TrainsWidths(ABC):
    """A method of models whose width is not the bundle's, or of several. Widths are in thousandths."""

    ordered: bool = True
    """Whether the first units of each block are trained as models of their own, so that narrower ones predict."""

    @property
    def model_width(self) -> int:
        """The width of the model that a run trains: what the coordinator evaluates."""
        return 1000

    @property
    def trained_widths(self) -> tuple[int, ...]:
        """The widths that a device of any tier may train, in ascending order; empty where any narrower one predicts."""
        return ()

    @abstractmethod
    def evaluated_width(self, tier: int) -> int:
        """The width of the model that a device of ``tier`` evaluates on its own data, and keeps."""

    def factor(self, width: int) -> float:
        """What multiplies the outputs of every block's layer where the first units of ``width`` are to predict."""
        del width
        return 1.0

    def statistic_widths(self, tier: int) -> tuple[int, ...]:
        """The widths that must have BatchNorm statistics of their own where any width has."""
        del tier
        return ()


def model_width(method: object) -> int:
    """The width, in thousandths, of the model that a run of ``method`` trains."""
    return method.model_width if isinstance(method, TrainsWidths) else 1000


def evaluated_width(method: object, tier: int) -> int:
    """The width, in thousandths, of the model that a device of ``tier`` evaluates on its own data, and keeps."""
    return method.evaluated_width(tier) if isinstance(method, TrainsWidths) else 1000


def width_factor(method: object, manifest: Manifest, width: int) -> float:
    """What multiplies the outputs of every block's layer where the first units of ``width`` (thousandths) predict.

    1 where the model has none to multiply (``manifest.scaled``). Raises ConfigError where the method gives a factor
    outside (0, 1000].
    """
    factor = method.factor(width) if isinstance(method, TrainsWidths) and manifest.scaled else 1.0
    if not 0 < factor <= MOST_FACTOR:
        raise ConfigError(f"The method's factor of a model of width {width / 1000:g} is {factor}: give 0 to 1000.")
    return factor


class CollectsStatistics(ABC):
    """A method that may gather BatchNorm's statistics from the devices once training is over."""

    @property
    @abstractmethod
    def collects_statistics(self) -> bool:
        """Whether it does, as its parameters say."""


class DrawsWithoutData:
    """A method whose patterns depend on no device's data: the server draws or fixes them, or a keyed stream does.

    Differential privacy needs one, as the places of an update's entries would tell of the data, too.
    """


class MasksLabels(ABC):
    """A method that may leave out of the loss the classes that a client has no samples of."""

    @property
    @abstractmethod
    def masks_labels(self) -> bool:
        """Whether it does, as its parameters say."""


class ChecksBundle(ABC):
    """A method that cannot train every bundle, whatever programs there are."""

    @abstractmethod
    def unfit(self, manifest: Manifest) -> str | None:
        """Why it cannot train this one: a sentence; None when it can."""


class NarrowsBlocks(ABC):
    """A method that trains first units as models of their own, in some blocks; all units of the others are kept."""

    @abstractmethod
    def narrowed(self, layout: Layout) -> frozenset[str]:
        """The blocks of which a narrower model has the first units alone."""


class ReordersUnits:
    """A method after whose rounds another unit may have a unit's place, so that nothing is remembered of a place."""


class SendsEntries:
    """A method whose updates leave out entries that the pattern keeps; its device half is one that selects them."""


class SelectsEntries(ABC):
    """The device half of a method that sends single entries."""

    @property
    @abstractmethod
    def sent(self) -> Mapping[str, NDArray[np.bool_]]:
        """Which entries of a parameter to send, full-size by its name, of those that ``upload`` keeps.

        Of a parameter that it does not name all are sent.
        """


class TrainsSlots(ABC):
    """A device half whose steps train arrays beside the model, in the slots of the train-step program."""

    @property
    @abstractmethod
    def slots(self) -> Weights:
        """Full-size arrays by ``SLOT.TENSOR`` that the round's steps begin with."""

    @abstractmethod
    def trained(self, slots: Weights) -> None:
        """Take note of the arrays, by ``SLOT.TENSOR``, that the last step left."""
