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

from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.layout import Layout, Mode, Tensor
from edge_fl.core.parameters import opened
from edge_fl.core.pattern import Pattern, kept_counts
from edge_fl.core.randomness import Stream
from edge_fl.core.registry import Registry
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.server_half import State, Weighting
from edge_fl.core.share import Share

__all__ = [
    "METHODS",
    "Ask",
    "DropoutMethod",
    "DropoutParameters",
    "Job",
    "LocalHalf",
    "LocalStep",
    "Method",
    "assigned_half",
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
    ``tier`` is the one that the coordinator gave the client in this round.
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
    tier: int = 0
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
class LocalStep:
    """What one local step trains: the units of ``pattern``.

    ``scale`` multiplies the outputs of every block's layer. ``variant`` is the train-step program, None for the
    method's own. ``width``, in thousandths, is the one whose BatchNorm statistics the step brings up to date, None for
    the pattern's.
    """

    pattern: Pattern
    scale: float = 1.0
    variant: str | None = None
    width: int | None = None


class LocalHalf:
    """The device half of a method during one round: what each step trains, and what to remember.

    As it stands, every step trains the same, and nothing is remembered. A half that remembers arrays which the steps
    train beside the model, or sends single entries, extends :mod:`edge_fl.methods.capabilities` besides.

    Attributes
    ----------
    step
        What the next step trains.
    """

    def __init__(self, step: LocalStep) -> None:
        self.step = step

    def extra(self, selection: Selection, number: int) -> Mapping[str, NDArray[Any]]:
        """What the program takes in step ``number`` (0, 1, ...) besides what every step takes, by its inputs' names.

        ``selection`` is what the step's pattern keeps in ``units`` mode.
        """
        del selection, number
        return {}

    def after_step(self, number: int, loss: float) -> None:
        """Take note of the loss of step ``number`` (0, 1, ...), and perhaps change ``step``."""

    @property
    def upload(self) -> Pattern:
        """The pattern to upload, asked after the last step: the one trained last, unless a method knows better."""
        return self.step.pattern

    def state(self) -> State:
        """What to keep if the coordinator accepts this round's update."""
        return {}


def assigned_half(job: Job, *, scale: float = 1.0, width: int | None = None) -> LocalHalf:
    """A device half that trains what its server half assigned; raises ConfigError when the task assigns nothing."""
    if job.assigned is None:
        raise ConfigError(f"The task of round {job.round} assigns no pattern, and this method draws none itself.")
    return LocalHalf(LocalStep(job.assigned, scale, width=width))


class Method(ABC):
    """One dropping method with its parameters: who trains which units, and how updates are averaged.

    A method needs ``name``, ``Parameters``, ``rule``, ``mode``, :meth:`counts` and :meth:`local`. What few methods do
    (learning from updates, an optimiser on the server, models of several widths, ...) is a class each in
    :mod:`edge_fl.methods.capabilities` and :mod:`edge_fl.core.server_half`, to extend besides.

    Parameters
    ----------
    parameters
        An instance of ``Parameters``.
    """

    name: ClassVar[str]
    Parameters: ClassVar[type[msgspec.Struct]]
    """Its parameters, with defaults; unknown ones are refused."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    @property
    @abstractmethod
    def rule(self) -> str:
        """The aggregation rule, by name: ``mean``, ``holders`` or ``zeros``."""

    @property
    def weighting(self) -> Weighting:
        """Whether an update counts as many times as its client has samples, or once a client."""
        return "samples"

    @property
    @abstractmethod
    def mode(self) -> Mode:
        """Which columns travel with a kept row."""

    @property
    def variant(self) -> str:
        """The train-step program the method needs."""
        return "plain"

    @property
    def tiers(self) -> int:
        """How many tiers it tells apart; the last serves every tier beyond."""
        return 1

    @abstractmethod
    def counts(self, layout: Layout, tier: int) -> dict[str, int]:
        """How many units of each block an update of ``tier`` holds (at most, where counts are drawn), by block."""

    def programs(self, layout: Layout, tier: int) -> list[tuple[str, dict[str, int]]]:
        """The variant, and the kept units by block, of every train step that a device of ``tier`` may have to run."""
        return [(self.variant, self.counts(layout, tier))]

    def assign(self, ask: Ask) -> Pattern | None:
        """The pattern that a client is to train in this round; None leaves the choice to the device half."""
        del ask
        return None

    @abstractmethod
    def local(self, job: Job) -> LocalHalf:
        """Start the device half for one round."""

    def check(self, pattern: Pattern, tier: int, assigned: Pattern | None = None) -> None:
        """Refuse an uploaded pattern that this method cannot have made: FrameError (``pattern``).

        As it stands, one with other counts than :meth:`counts`; a method that draws counts allows fewer.
        """
        if assigned is not None:
            if pattern != assigned:
                raise FrameError("pattern", "The pattern is not the one that was assigned.")
            return
        expected = self.counts(pattern.layout, tier)
        for block, count in pattern.counts.items():
            if count != expected[block]:
                raise FrameError(
                    "pattern",
                    f"The pattern keeps {count} units of block '{block}', where the method's counts() say "
                    f"{expected[block]}: a method that draws counts overrides check().",
                )


class DropoutParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every method with a dropout rate takes.

    Parameters
    ----------
    dropout
        The rate p in [0, 1), one a tier; the last serves every tier beyond.
    """

    dropout: tuple[Share, ...] = (500,)

    def __post_init__(self) -> None:
        if not self.dropout or any(not 0 <= p < 1000 for p in self.dropout):
            raise ConfigError("The dropout rates must be in [0, 1), one or more of them.")


class DropoutMethod(Method):
    """A method that keeps S_b = floor((1 - p) J_b + 0.5) units of each block, with p by tier.

    Dropping shifts BatchNorm's running statistics against those of the full model (Li et al., 2019, *Understanding the
    Disharmony between Dropout and Batch Normalization by Variance Shift*).
    """

    parameters: DropoutParameters

    @property
    def tiers(self) -> int:
        """As many as there are rates."""
        return len(self.parameters.dropout)

    def dropout(self, tier: int) -> int:
        """The dropout rate p of ``tier``, in thousandths."""
        return of_tier(self.parameters.dropout, tier)

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
