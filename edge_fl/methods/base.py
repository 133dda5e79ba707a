"""What a dropping method is: a server half that sets and checks, a device half that drops and adapts.

A method is one module of this package that defines ``METHOD``, a subclass of :class:`Method`, and is named as on the
command line, with ``__`` for ``+``: ``fjord+kd`` is ``fjord__kd.py``. Both halves need numpy alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import Manifest
from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.layout import Layout, Mode, Tensor
from edge_fl.core.parameters import opened
from edge_fl.core.pattern import Pattern, kept_counts
from edge_fl.core.randomness import Stream
from edge_fl.core.registry import Registry
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.server_half import ServerHalf, State
from edge_fl.core.share import Share
from edge_fl.core.width_statistics import width_of

__all__ = [
    "METHODS",
    "Ask",
    "AssignedHalf",
    "ClientReport",
    "DropoutMethod",
    "DropoutParameters",
    "Job",
    "LocalHalf",
    "Method",
    "choose",
    "inverse_kept",
    "method_names",
    "of_tier",
    "open_method",
]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Job:
    """One client's part in one round, as far as a method cares.

    ``weights`` are the full tensors training starts from, ``state`` what the method kept after the last accepted
    round (empty at first), ``assigned`` the pattern that the server half chose (None where the device half does).
    ``statistic_widths`` are those that BatchNorm has statistics for (the manifest's); ``label_mask`` is ``[classes]``,
    1 for the classes that the client has samples of and 0 for the others, None where the loss takes no such mask.
    ``samples`` is how many the client trains on, ``batch`` how many a batch holds, padding among them, and
    ``output_noise`` the manifest's.
    """

    layout: Layout
    client: str
    round: int
    seed: int
    weights: Weights
    state: State
    assigned: Pattern | None = None
    statistic_widths: tuple[int, ...] = ()
    label_mask: NDArray[np.float32] | None = None
    samples: int = 1
    batch: int = 1
    output_noise: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Ask:
    """One client about to be asked in a round, as far as a server half cares.

    ``weights`` are the full tensors that it is to train, by name; empty where steps are only rehearsed.
    """

    layout: Layout
    client: str
    tier: int
    round: int
    seed: int
    weights: Weights = field(default_factory=dict)


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


class LocalHalf:
    """The device half of a method during one round: which rows to train now, and what to remember."""

    pattern: Pattern
    """The pattern to train with next; another object whenever ``scale`` or ``variant`` changes, too."""

    variant: str | None = None
    """The train-step program of the next step, where it is not the method's own."""

    scale: float = 1.0
    """Factor on the outputs of every block's layer during local training."""

    @property
    def slots(self) -> Weights:
        """Full-size state by ``SLOT.TENSOR`` that a round's steps begin with, where it does not start fresh."""
        return {}

    @property
    def width(self) -> int:
        """The width, in thousandths, whose BatchNorm statistics the next step brings up to date."""
        return width_of(self.pattern)

    def extra(self, selection: Selection, step: int) -> Mapping[str, NDArray[Any]]:
        """What the program takes in ``step`` (0, 1, ...) besides what every step takes, by the names of its inputs.

        ``selection`` is what ``pattern`` keeps in ``units`` mode.
        """
        del selection, step
        return {}

    @property
    def upload(self) -> Pattern:
        """The pattern to upload, asked after the last step: the one trained last, unless a method knows better."""
        return self.pattern

    def after_step(self, step: int, loss: float) -> None:
        """Take note of the loss of ``step`` (0, 1, ...), and perhaps change ``pattern``."""

    def trained(self, slots: Weights) -> None:
        """Take note of the full-size state, by ``SLOT.TENSOR``, that the last step left."""

    @property
    def sent(self) -> Mapping[str, NDArray[np.bool_]]:
        """Which entries of a parameter to send, full-size by its name, of those that ``upload`` keeps.

        Only a ``sparse`` method is asked; of a parameter that it does not name all are sent.
        """
        return {}

    def state(self) -> State:
        """What to keep if the coordinator accepts this round's update."""
        return {}


class AssignedHalf(LocalHalf):
    """A device half that trains the pattern that its server half assigned.

    Raises ConfigError when the task assigns none.
    """

    def __init__(self, job: Job, *, scale: float = 1.0) -> None:
        if job.assigned is None:
            raise ConfigError(
                f"The task of round {job.round} assigns no pattern, and this method draws none itself."
            )
        self.pattern, self.scale = job.assigned, scale


class Method(ServerHalf, ABC):
    """One dropping method with its parameters.

    Parameters
    ----------
    parameters
        An instance of ``Parameters``.
    """

    name: ClassVar[str]
    Parameters: ClassVar[type[msgspec.Struct]]
    """Its parameters, with defaults; unknown ones are refused."""

    sparse: ClassVar[bool] = False
    """Whether its updates leave out entries that the pattern keeps (:attr:`LocalHalf.sent`)."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    @property
    def variant(self) -> str:
        """The train-step program the method needs."""
        return "plain"

    @property
    def tiers(self) -> int:
        """How many tiers it tells apart; the last serves every tier beyond."""
        return 1

    @property
    def model_width(self) -> int:
        """The width, in thousandths, of the model that a run trains: what is evaluated."""
        return 1000

    @property
    def ordered(self) -> bool:
        """Whether the first units of each block are trained as models of their own, so that narrower ones predict."""
        return False

    def evaluated_width(self, tier: int) -> int:
        """The width, in thousandths, of the model that a device of ``tier`` evaluates on its own data."""
        del tier
        return self.model_width

    @property
    def gathers_statistics(self) -> bool:
        """Whether BatchNorm's statistics are gathered from the devices once training is over."""
        return False

    @property
    def masks_labels(self) -> bool:
        """Whether a loss that can leave out the classes a client has no samples of is to do so."""
        return False

    def statistic_widths(self, tier: int) -> tuple[int, ...]:
        """The widths, in thousandths, that must have BatchNorm statistics of their own where any width has."""
        del tier
        return ()

    @property
    @abstractmethod
    def rule(self) -> str:
        """The aggregation rule, by name."""

    @property
    @abstractmethod
    def mode(self) -> Mode:
        """Which columns travel with a kept row."""

    def for_tier(self, tier: int) -> dict[str, Any]:
        """The parameters to send to a device of ``tier`` (0, 1, ...)."""
        del tier
        return msgspec.to_builtins(self.parameters)  # type: ignore[no-any-return]

    @abstractmethod
    def counts(self, layout: Layout, tier: int) -> dict[str, int]:
        """How many units of each block an update of ``tier`` holds (at most, where counts are drawn), by block."""

    def programs(self, layout: Layout, tier: int) -> list[tuple[str, dict[str, int]]]:
        """The variant, and the kept units by block, of every train step that a device of ``tier`` may have to run."""
        return [(self.variant, self.counts(layout, tier))]

    def unfit(self, manifest: Manifest) -> str | None:
        """Why it cannot train this bundle, whatever programs there are: a sentence; None when it can."""
        del manifest
        return None

    def assign(self, ask: Ask) -> Pattern | None:
        """The pattern that a client is to train in this round; None leaves the choice to the device half."""
        del ask
        return None

    def learn(self, round: int, heard: Sequence[ClientReport]) -> None:
        """Take note of a closed round's updates, in the order of client ids."""
        del round, heard

    @abstractmethod
    def local(self, job: Job) -> LocalHalf:
        """Start the device half for one round."""

    def check(self, pattern: Pattern, tier: int, assigned: Pattern | None = None) -> None:
        """Refuse an uploaded pattern that this method cannot have made: FrameError (``pattern``)."""
        if assigned is not None:
            if pattern != assigned:
                raise FrameError("pattern", "The pattern is not the one that was assigned.")
            return
        expected = self.counts(pattern.layout, tier)
        for block, count in pattern.counts.items():
            if count != expected[block]:
                raise FrameError(
                    "pattern",
                    f"The pattern keeps {count} units of block '{block}', not the {expected[block]} assigned.",
                )


class DropoutParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every method with a dropout rate takes.

    ``dropout`` is p in thousandths, one a tier (the last serves every tier beyond).
    """

    dropout: tuple[Share, ...] = (500,)

    def __post_init__(self) -> None:
        if not self.dropout or any(not 0 <= p < 1000 for p in self.dropout):
            raise ConfigError("The dropout rates must be in [0, 1), one or more of them.")


class DropoutMethod(Method):
    """A method that keeps S_b = floor((1 - p) J_b + 0.5) units of each block, with p by tier."""

    parameters: DropoutParameters

    @property
    def tiers(self) -> int:
        """As many as there are rates."""
        return len(self.parameters.dropout)

    def dropout(self, tier: int) -> int:
        """The dropout rate p of ``tier``, in thousandths."""
        return of_tier(self.parameters.dropout, tier)

    def for_tier(self, tier: int) -> dict[str, Any]:
        """The parameters with the tier's own dropout rate alone."""
        own = msgspec.structs.replace(self.parameters, dropout=(self.dropout(tier),))
        return msgspec.to_builtins(own)  # type: ignore[no-any-return]

    def counts(self, layout: Layout, tier: int) -> dict[str, int]:
        """S_b of each block at the tier's rate."""
        return kept_counts(layout, self.dropout(tier))


def of_tier(values: Sequence[_T], tier: int) -> _T:
    """The value of ``tier`` among ``values`` given one a tier; the last serves every tier beyond."""
    return values[min(tier, len(values) - 1)]


def inverse_kept(dropout: int) -> float:
    """1 / (1 - p), which keeps the expectation of activations; ``dropout`` is p in thousandths."""
    return 1000 / (1000 - dropout)


def choose(options: Sequence[_T], stream: Stream) -> _T:
    """Draw one of ``options`` uniformly (to within 2**-32)."""
    return options[int(stream.uint32(1)[0]) * len(options) >> 32]


METHODS: Registry[Method] = Registry("method", "edge_fl.methods", "METHOD", Method, needs=("name", "Parameters"))


def method_names() -> list[str]:
    """The methods that are known here."""
    return METHODS.names()


def open_method(name: str, parameters: Mapping[str, Any]) -> Method:
    """The method ``name`` with ``parameters``; raises ConfigError on an unknown one of either."""
    method = METHODS.find(name)
    return method(opened(method.Parameters, parameters, f"method '{name}'"))
