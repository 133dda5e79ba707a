"""HeteroFL (Diao et al., 2021), section 3: clients of different means train prefixes of one model.

Levels a, b, c, d, e keep the first 1, 1/2, 1/4, 1/8, 1/16 of the units of every block (hidden channels shrink
at rate r). A client's level is its tier's, or drawn anew each round (``dynamic``), uniformly from all the
levels given and whatever its tier. The scaler divides the outputs of every block's layer by r in training
(``scale``). The server takes the plain mean over the clients that hold an entry (rule ``holders``, weighting
``clients``).

Masked cross-entropy sets the outputs of the classes that a client has no samples of to zero in its training
(``mask``), in bundles whose loss can: ``--loss masked_cross_entropy``. With any other loss nothing is masked.

Static BatchNorm (``static``) normalises by the batch in training, and by statistics collected from the clients once it
is over: each client's at its level, the plain mean over its batches, with the factor that it predicts with
(:mod:`edge_fl.training.batch_statistics`). In a bundle exported with ``--batch-norm per-width`` a level has those of
the exported width nearest to its own; with ``tracked`` only the full model's are collected, or the widest level's, by
its clients. Steps of training move them along until then, and without ``static`` that is all. With ``--batch-norm
static`` steps leave the statistics alone: none can be collected, and evaluation normalises by those of the export.

A width travels in thousandths, which cannot hold 1/16: level e keeps ceil(0.062 J_b) units. That is J_b/16
wherever 16 divides J_b and J_b < 2000, and never more than the ceil(J_b/16) of the paper; the scaler is 16
exactly.

Drops, in ``units`` mode, the last rows and biases of every layer but the output's, and the columns that they
would feed: with k = 256 r the MLP 784-256-256-10 sends 784 k + k + k*k + k + 10 k + 10 numbers; k is 256, 128,
64, 32, 16.
"""

from dataclasses import replace
from typing import Literal

import msgspec

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern, Prefix, prefix_counts
from edge_fl.core.randomness import Stream
from edge_fl.methods.base import Ask, Job, LocalHalf, Method, assigned_half, choose, of_tier
from edge_fl.methods.capabilities import CollectsStatistics, DrawsWithoutData, MasksLabels, TrainsWidths

__all__ = ["LEVEL_WIDTHS", "METHOD", "HeteroFl", "HeteroFlParameters", "Level"]

Level = Literal["a", "b", "c", "d", "e"]

_RECIPROCALS: dict[Level, int] = {"a": 1, "b": 2, "c": 4, "d": 8, "e": 16}
LEVEL_WIDTHS: dict[Level, int] = {level: 1000 // reciprocal for level, reciprocal in _RECIPROCALS.items()}
"""The width of each level in thousandths, the widest first."""

_SCALERS = {LEVEL_WIDTHS[level]: float(reciprocal) for level, reciprocal in _RECIPROCALS.items()}


class HeteroFlParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What HeteroFL takes.

    Parameters
    ----------
    levels
        The level of each tier, ``a`` (all of the model) to ``e`` (a sixteenth of each block); the last serves every
        tier beyond. By default tier 0 is the ablest. Where levels are drawn, one named twice is drawn twice as often.
    dynamic
        Draw a client's level anew each round, whatever its tier.
    scale
        Divide the outputs of each block's layer by the level's share in training.
    mask
        Set the outputs of classes that a client has no samples of to zero in training, where the bundle's loss is
        ``masked_cross_entropy``.
    static
        Normalise by the batch in training, and collect BatchNorm's statistics from clients after the last round.
    """

    levels: tuple[Level, ...] = ("a", "b", "c", "d", "e")
    dynamic: bool = False
    scale: bool = True
    mask: bool = True
    static: bool = True

    def __post_init__(self) -> None:
        if not self.levels:
            raise ConfigError("HeteroFL needs one or more levels.")


class HeteroFl(Method, TrainsWidths, CollectsStatistics, MasksLabels, DrawsWithoutData):
    """Every client trains one prefix of the model, as wide as its level says."""

    name = "heterofl"
    Parameters = HeteroFlParameters
    parameters: HeteroFlParameters
    rule = "holders"
    weighting = "clients"
    mode: Mode = "units"  # a sub-model is a smaller dense one

    @property
    def tiers(self) -> int:
        """As many as there are levels."""
        return len(self.parameters.levels)

    @property
    def collects_statistics(self) -> bool:
        """With ``static``, as the paper."""
        return self.parameters.static

    @property
    def masks_labels(self) -> bool:
        """With ``mask``, as the paper."""
        return self.parameters.mask

    @property
    def trained_widths(self) -> tuple[int, ...]:
        """Those of the levels, whether or not the run has a tier of each."""
        return tuple(sorted({LEVEL_WIDTHS[level] for level in self.parameters.levels}))

    def evaluated_width(self, tier: int) -> int:
        """That of the tier's level; where levels are drawn, of the widest."""
        return max(self._widths(tier))

    def factor(self, width: int) -> float:
        """The scaler of its level, or of a width between levels what that would be: a sub-model predicts as it trained.

        The paper's code predicts without one, which leaves its narrow models less (docs/benchmarks/heterogeneous.md).
        """
        return _SCALERS.get(width, 1000 / width) if self.parameters.scale else 1.0

    def counts(self, layout: Layout, tier: int) -> dict[str, int]:
        """Of the tier's level; where levels are drawn, of the widest."""
        return prefix_counts(layout, max(self._widths(tier)))

    def programs(self, layout: Layout, tier: int) -> list[tuple[str, dict[str, int]]]:
        """One for each level that the tier may be given."""
        return [(self.variant, prefix_counts(layout, width)) for width in sorted(self._widths(tier))]

    def assign(self, ask: Ask) -> Pattern:
        """The prefix of the tier's level, or of one drawn for this client and round."""
        level = of_tier(self.parameters.levels, ask.tier)
        if self.parameters.dynamic:
            stream = Stream.of(seed=ask.seed, purpose="heterofl-level", client=ask.client, round=ask.round)
            level = choose(self.parameters.levels, stream)
        return Pattern.prefix(ask.layout, LEVEL_WIDTHS[level])

    def local(self, job: Job) -> LocalHalf:
        """Train the prefix assigned; ConfigError when it is no level's."""
        half = assigned_half(job)
        if self.parameters.scale:
            half.step = replace(half.step, scale=_scaler(half.step.pattern))
        return half

    def _widths(self, tier: int) -> set[int]:
        levels = self.parameters.levels
        return {LEVEL_WIDTHS[level] for level in (levels if self.parameters.dynamic else [of_tier(levels, tier)])}


def _scaler(pattern: Pattern) -> float:
    """1/r of the level whose prefix ``pattern`` is."""
    match pattern.origin:
        case Prefix(width=width) if width in _SCALERS:
            return _SCALERS[width]
    raise ConfigError("The pattern assigned is no prefix of a HeteroFL level.")


METHOD = HeteroFl
