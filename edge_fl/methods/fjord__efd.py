"""FjORD with extended federated dropout (Horvath et al., 2021, section 5): tiers reach for the next tier's sub-model.

A device of p_max draws p as in FjORD, but from the widths up to p_next, the p_max of the next more powerful tier.
Where p = p_next it drops random units of that prefix at the rate that leaves it p_max, ``1 - p_max / p_next``, or at
``cap`` (0.25) if that is less: then it keeps ceil((1 - cap) p_next J_b) units, which is more than p_max allows (at the
default widths the tiers 0.4 and 0.2 keep 0.45 and 0.3). The ablest tier has no next one and does as in FjORD.

The paper does not say whether units are drawn each step or each round, nor what is uploaded. Here it is each step, as
p is; so every unit of p_next may have been trained, and the prefix of p_next is uploaded and held.

``scale`` multiplies the outputs of every block's layer by 1 / (1 - rate) in steps that drop at random, as dropout is;
the paper does not say.

Drops, in ``units`` mode, what FjORD drops one tier up, and an update is as large as there.
"""

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern, prefix_counts
from edge_fl.core.randomness import Stream
from edge_fl.core.share import Share
from edge_fl.methods.base import Job, LocalHalf, LocalStep
from edge_fl.methods.fjord import Fjord, FjordParameters, draw_width

__all__ = ["METHOD", "FjordEfd", "FjordEfdParameters"]


class FjordEfdParameters(FjordParameters, frozen=True, forbid_unknown_fields=True):
    """What ``fjord+efd`` takes beside ``widths``.

    Parameters
    ----------
    cap
        The highest rate of random dropping.
    scale
        Multiply kept activations by 1 / (1 - rate) in training.
    """

    cap: Share = 250
    scale: bool = True

    def __post_init__(self) -> None:
        FjordParameters.__post_init__(self)
        if not 0 <= self.cap < 1000:
            raise ConfigError("The cap on FjORD's random dropping must be in [0, 1).")

    def kept(self, own: int, width: int) -> int:
        """What a device of p_max ``own`` keeps of the full model when it trains ``width`` (all in thousandths)."""
        return min(width, max(own, -(-(1000 - self.cap) * width // 1000)))


class _Local(LocalHalf):
    """Local iterations that draw a width, and random units of one that is wider than p_max, which is ``own``."""

    def __init__(self, job: Job, parameters: FjordEfdParameters, widths: tuple[int, ...], own: int) -> None:
        self._job, self._parameters, self._widths, self._own = job, parameters, widths, own
        self._prefixes = {width: Pattern.prefix(job.layout, width) for width in widths}
        super().__init__(self._draw(0))

    def _draw(self, number: int) -> LocalStep:
        job = self._job
        width = draw_width(job, self._widths, number)
        kept = self._parameters.kept(self._own, width)
        if kept == width:
            return LocalStep(self._prefixes[width], width=width)
        stream = Stream.of(
            seed=job.seed, purpose="fjord-efd-units", client=job.client, round=job.round, index=number
        )
        scale = width / kept if self._parameters.scale else 1.0
        return LocalStep(Pattern.within(job.layout, width, kept, stream), scale, width=width)

    @property
    def upload(self) -> Pattern:
        """The prefix of p_next."""
        return self._prefixes[max(self._widths)]

    def after_step(self, number: int, loss: float) -> None:
        """Draw the next step's width, and units."""
        del loss
        self.step = self._draw(number + 1)


class FjordEfd(Fjord):
    """FjORD in which every tier but the ablest also trains the next tier's width, less random units."""

    name = "fjord+efd"
    Parameters = FjordEfdParameters
    parameters: FjordEfdParameters

    def widest(self, tier: int) -> int:
        """p_next; p_max where no tier is more powerful."""
        own = self.p_max(tier)
        return min((width for width in self.parameters.widths if width > own), default=own)

    def programs(self, layout: Layout, tier: int) -> list[tuple[str, dict[str, int]]]:
        """One for each width that a step may draw, less what it drops."""
        own = self.p_max(tier)
        kept = sorted({self.parameters.kept(own, width) for width in self.allowed(tier)})
        return [(self.variant, prefix_counts(layout, width)) for width in kept]

    def local(self, job: Job) -> LocalHalf:
        """Draw a width for each step."""
        return _Local(job, self.parameters, self.allowed(job.tier), self.p_max(job.tier))


METHOD = FjordEfd
