"""eFD, extended federated dropout (Horvath et al., 2021, section 5): FjORD's baseline, one model for each width.

For every width p a separate model is trained, end to end, by all clients; a run trains one of them (``width``), as
the first ceil(p J_b) units of each block. A tier that can run it trains all of it. For each client and round of a tier
that can run no more than p_max < p the server draws ceil(p_max J_b) of its units, as in federated dropout (Caldas et
al.), so that the rate, ``1 - p_max / p``, follows from what the device can do. Units beyond the first are neither
trained nor uploaded, and the accuracy of a run is that of the model of width p. Comparing with FjORD takes a run for
each width but the least, at which nothing is dropped.

What goes to the devices is the full model at any width, as with every method.

Where the paper can be read in two ways, both are parameters: kept activations are scaled by 1/(1 - rate) in local
training (``scale``), as dropout is; the paper does not say. On the digits in five tiers that did better, or as well
within the seeds' deviation.

BatchNorm in a bundle exported with ``--batch-norm per-width``: the statistics are those of ``width``, which must be
among the bundle's.

Drops, in ``units`` mode, the rows and biases of dropped units and the columns that they would feed: with
k = ceil(256 min(p, p_max)) the MLP 784-256-256-10 sends 784 k + k + k*k + k + 10 k + 10 numbers.
"""

import msgspec

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern, prefix_counts
from edge_fl.core.randomness import Stream
from edge_fl.core.share import Share
from edge_fl.methods.base import Ask, Job, LocalHalf, Method, assigned_half, of_tier
from edge_fl.methods.capabilities import DrawsWithoutData, TrainsWidths

__all__ = ["METHOD", "Efd", "EfdParameters"]


class EfdParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What eFD takes; widths are shares of the full model.

    Parameters
    ----------
    width
        The width p of the model that this run trains.
    widths
        The widest model p_max that each tier can run, one a tier; the last serves every tier beyond.
    scale
        Multiply kept activations by 1 / (1 - rate) in training.
    """

    width: Share = 1000
    widths: tuple[Share, ...] = (1000, 800, 600, 400, 200)
    scale: bool = True

    def __post_init__(self) -> None:
        if not self.widths or any(not 1 <= width <= 1000 for width in (self.width, *self.widths)):
            raise ConfigError("The width of eFD's model, and one or more of its tiers, must be in (0, 1].")


class Efd(Method, TrainsWidths, DrawsWithoutData):
    """The server draws, of a model of one width, as many units as the tier can run."""

    name = "efd"
    Parameters = EfdParameters
    parameters: EfdParameters
    rule = "holders"  # as FjORD's
    mode: Mode = "units"  # a sub-model is a smaller dense one
    ordered = False

    @property
    def tiers(self) -> int:
        """As many as there are widths."""
        return len(self.parameters.widths)

    @property
    def model_width(self) -> int:
        """The p of the run."""
        return self.parameters.width

    def evaluated_width(self, tier: int) -> int:
        """The p of the run."""
        del tier
        return self.parameters.width

    def statistic_widths(self, tier: int) -> tuple[int, ...]:
        """The p of the run alone."""
        del tier
        return (self.parameters.width,)

    def counts(self, layout: Layout, tier: int) -> dict[str, int]:
        """ceil(min(p, p_max) J_b) of each block."""
        return prefix_counts(layout, self._kept(tier))

    def assign(self, ask: Ask) -> Pattern:
        """The prefix of width p, or units of it from the stream of this client and round, which a retry finds again."""
        kept, width = self._kept(ask.tier), self.parameters.width
        if kept == width:
            return Pattern.prefix(ask.layout, width)
        stream = Stream.of(seed=ask.seed, purpose="efd-pattern", client=ask.client, round=ask.round)
        return Pattern.within(ask.layout, width, kept, stream)

    def local(self, job: Job) -> LocalHalf:
        """Train what was drawn of the model of one width, whose statistics each step brings up to date."""
        width = self.parameters.width
        scale = width / self._kept(job.tier) if self.parameters.scale else 1.0
        return assigned_half(job, scale=scale, width=width)

    def _kept(self, tier: int) -> int:
        return min(self.parameters.width, of_tier(self.parameters.widths, tier))


METHOD = Efd
