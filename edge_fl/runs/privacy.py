"""What a run promises in differential privacy: the settings, and what a round has spent."""

import math
from typing import Literal

import msgspec

from edge_fl.core.errors import ConfigError
from edge_fl.core.field_types import settle_fields

__all__ = ["Privacy", "Spent"]


class Privacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Differential privacy of devices, by clipped updates and Gaussian noise.

    Every update has an L2 norm of ``clip`` at most. ``central``: the coordinator adds noise of ``noise * clip`` to the
    sum of a round's updates (DP-FedAvg, McMahan et al. 2018). ``local``: every device adds noise of that deviation to
    its own update. Give ``noise``, or the ``epsilon`` that all rounds together may cost: edge-fl then finds the noise.
    ``delta`` is the chance that the promise does not hold. ``devices`` are those of the whole fleet: with random
    selection each is asked with the same chance, clients a round over devices (None: in a simulation all clients, else
    no chance is counted on). With a ``quantile`` the clip follows that quantile of the updates' norms (Andrew et al.
    2021), from ``clip`` on.
    """

    kind: Literal["central", "local"]
    noise: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    quantile: float | None = None
    devices: int | None = None

    def __post_init__(self) -> None:
        settle_fields(self)
        if self.kind not in ("central", "local"):
            raise ConfigError(f"Differential privacy is central or local, not '{self.kind}'.")
        if (self.noise is None) == (self.epsilon is None):
            raise ConfigError("Differential privacy takes either a noise or the epsilon to find it for.")
        if self.noise is not None and not 0 <= self.noise < math.inf:
            raise ConfigError(f"The noise is a number of clips, 0 or more, not {self.noise:g}.")
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise ConfigError(f"Epsilon is above 0, not {self.epsilon:g}.")
        if not 0 < self.delta < 1:
            raise ConfigError(f"Delta is a chance in (0, 1), not {self.delta:g}.")
        if not 1e-6 <= self.clip <= 1e6:
            raise ConfigError(f"The clip is a norm from 1e-6 to 1e6, not {self.clip:g}.")
        if self.devices is not None and self.devices < 1:
            raise ConfigError(f"A fleet has 1 device or more, not {self.devices}.")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise ConfigError(f"The quantile that the clip follows is in (0, 1), not {self.quantile:g}.")
        if self.quantile is not None and self.kind == "local":
            raise ConfigError("With local privacy nobody learns the norms: leave the quantile out.")

    @property
    def deviation(self) -> float:
        """The noise in clips, once it is known; raises ConfigError before."""
        if self.noise is None:
            raise ConfigError("The noise for this epsilon has not been found yet.")
        return self.noise

    def chance(self, asked: int) -> float:
        """The chance with which each device is asked, where ``asked`` are to be in a round on average."""
        return 1.0 if self.devices is None else min(1.0, asked / self.devices)


class Spent(msgspec.Struct, frozen=True):
    """What is known of privacy after a round.

    ``epsilon`` is what all rounds so far cost at the run's delta; None without noise: then nothing is promised. With
    local privacy it is that of the device that was asked most often. ``clip`` is the norm that updates had in the round
    at most. ``unclipped`` is the share of them below that, with noise, where the clip follows a quantile.
    """

    epsilon: float | None
    clip: float
    unclipped: float | None = None

    @property
    def text(self) -> str:
        """For people."""
        return "no noise" if self.epsilon is None else f"epsilon {self.epsilon:.3g}"
