"""FjORD (Horvath et al., 2021), sections 3.1, 3.2 (plain ordered dropout) and 4: nested sub-models.

A sub-model of width p keeps the first ceil(p J_b) units of every block. A client may train up to its own p_max;
each local step draws p uniformly from the widths P up to p_max and trains that prefix, and the upload is the
prefix of p_max, whatever was drawn. The server takes the weighted mean over those who hold an entry (eq. (2),
rule ``holders``). ``fjord+kd`` distils knowledge from p_max besides, ``fjord+efd`` reaches for the next tier's.

Drops, in ``units`` mode, the last rows and biases of every layer but the output's, and the columns that they
would feed: with k = ceil(256 p_max) the MLP 784-256-256-10 sends 784 k + k + k*k + k + 10 k + 10 numbers; k is
256, 205, 154, 103 and 52 at the default widths.

BatchNorm: in a bundle exported with ``--batch-norm per-width`` each step brings the running statistics of the width it
drew up to date, and no other's (:mod:`edge_fl.core.width_statistics`); such a bundle must have every width drawn.
All widths share the factors and biases of BatchNorm, where the paper's appendix trains independent layers.
"""

import msgspec

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern, prefix_counts
from edge_fl.core.randomness import Stream
from edge_fl.core.share import Share
from edge_fl.methods.base import Job, LocalHalf, LocalStep, Method, choose, of_tier
from edge_fl.methods.capabilities import DrawsWithoutData, TrainsWidths

__all__ = ["METHOD", "Fjord", "FjordParameters", "draw_width"]


class FjordParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What FjORD takes.

    Parameters
    ----------
    widths
        The widest share p_max of the model that each tier trains, one a tier; the last serves every tier beyond. By
        default tier 0 is the ablest; a fleet that numbers its tiers the other way lists them in reverse.
    """

    widths: tuple[Share, ...] = (1000, 800, 600, 400, 200)

    def __post_init__(self) -> None:
        if not self.widths or any(not 1 <= width <= 1000 for width in self.widths):
            raise ConfigError("FjORD's widths must be in (0, 1], one or more of them.")
        if len(set(self.widths)) < len(self.widths):
            raise ConfigError("FjORD's widths must differ from one another, for p is drawn uniformly from them.")


def draw_width(job: Job, widths: tuple[int, ...], number: int) -> int:
    """The p (thousandths) of local iteration ``number`` (0, 1, ...), uniform over ``widths``."""
    stream = Stream.of(seed=job.seed, purpose="fjord-width", client=job.client, round=job.round, index=number)
    return choose(sorted(widths), stream)


class _Local(LocalHalf):
    """Local iterations of section 4: one width a step."""

    def __init__(self, job: Job, widths: tuple[int, ...]) -> None:
        self._job, self._widths = job, widths
        self._steps = {width: LocalStep(Pattern.prefix(job.layout, width)) for width in widths}
        super().__init__(self._steps[draw_width(job, widths, 0)])

    @property
    def upload(self) -> Pattern:
        """The prefix of p_max."""
        return self._steps[max(self._widths)].pattern

    def after_step(self, number: int, loss: float) -> None:
        """Draw the next step's width."""
        del loss
        self.step = self._steps[draw_width(self._job, self._widths, number + 1)]


class Fjord(Method, TrainsWidths, DrawsWithoutData):
    """Every client trains prefixes of the model, of all the widths that it can run."""

    name = "fjord"
    Parameters = FjordParameters
    parameters: FjordParameters
    rule = "holders"  # eq. (2)
    mode: Mode = "units"  # a sub-model is a smaller dense one

    @property
    def tiers(self) -> int:
        """As many as there are widths."""
        return len(self.parameters.widths)

    def p_max(self, tier: int) -> int:
        """The width (thousandths) that a device of ``tier`` can run."""
        return of_tier(self.parameters.widths, tier)

    def widest(self, tier: int) -> int:
        """The widest prefix (thousandths) that a device of ``tier`` trains, and uploads."""
        return self.p_max(tier)

    @property
    def trained_widths(self) -> tuple[int, ...]:
        """P."""
        return tuple(sorted(set(self.parameters.widths)))

    def evaluated_width(self, tier: int) -> int:
        """p_max: the sub-model that the device could use."""
        return self.p_max(tier)

    def allowed(self, tier: int) -> tuple[int, ...]:
        """The widths (thousandths) that a step of ``tier`` may draw, in ascending order."""
        return tuple(width for width in self.trained_widths if width <= self.widest(tier))

    def counts(self, layout: Layout, tier: int) -> dict[str, int]:
        """Those of the prefix that is uploaded."""
        return prefix_counts(layout, self.widest(tier))

    def programs(self, layout: Layout, tier: int) -> list[tuple[str, dict[str, int]]]:
        """One for each width that a step may draw."""
        return [(self.variant, prefix_counts(layout, width)) for width in self.allowed(tier)]

    def statistic_widths(self, tier: int) -> tuple[int, ...]:
        """All that a step may draw."""
        return self.allowed(tier)

    def local(self, job: Job) -> LocalHalf:
        """Draw a width for each step."""
        return _Local(job, self.allowed(job.tier))

    def check(self, pattern: Pattern, tier: int, assigned: Pattern | None = None) -> None:
        """Refuse all but the widest prefix: FrameError (``pattern``)."""
        del assigned
        super().check(pattern, tier, Pattern.prefix(pattern.layout, self.widest(tier)))


METHOD = Fjord
