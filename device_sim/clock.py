"""Virtual time: how long the rounds of a simulation would have taken on given links and devices.

A round lasts as long as its slowest client, and a client downloads the model, makes its local steps, and uploads its
update::

    max over clients of  8 down / (1e6 link.down) + V * step * slowdown + 8 up / (1e6 link.up)   seconds

with ``down`` and ``up`` the bytes of encoded frames, V the local steps, ``step`` the measured seconds of one, and
``slowdown`` that of the client's tier against the machine that measured. Waiting for the server, and a link's latency,
count as nothing.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from broker.run_folder import RoundMetrics
from edge_fl.errors import ConfigError

__all__ = ["LINKS", "TIER_SLOWDOWNS", "Clock", "Link", "Traffic", "find_link", "time_to", "traffic_of"]

_SPEEDS = re.compile(r"(?P<down>[0-9]+(\.[0-9]+)?)/(?P<up>[0-9]+(\.[0-9]+)?)")


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast a client downloads and uploads, in Mbps (1e6 bits a second)."""

    down: float
    up: float

    def __post_init__(self) -> None:
        if not (0 < self.down < float("inf") and 0 < self.up < float("inf")):
            raise ConfigError(f"A link has speeds above 0 Mbps, not {self.down:g} down and {self.up:g} up.")


LINKS: dict[str, Link] = {
    "3g": Link(1.6, 0.768),
    "dsl": Link(1.5, 0.384),
    "cable": Link(5.0, 1.0),
    "4g": Link(9.0, 9.0),
    "lte": Link(12.0, 12.0),
    "wifi": Link(30.0, 15.0),
    "5g": Link(110.6, 14.0),
    "fibre": Link(20.0, 5.0),
}
"""Links by name. ``5g`` is FedBIAD's (Xue et al., 2023, section VI-C: T-Mobile's network); ``wifi`` is Firefox's
throttling profile of that name; the others are those of WebPageTest (``connectivity.ini.sample``: 3G, DSL, Cable, 4G,
LTE, FIOS), which are what is seen in use rather than what is sold, so that its fibre is slower than 5G.
"""

TIER_SLOWDOWNS = (1.0, 2.0, 4.0, 8.0)
"""How much longer a step takes in tier 0, 1, ... than where it was measured. An assumption, measured on nothing: each
tier has half the speed of the one before.
"""


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that a round sent to a client of each tier, and the largest update of the tier, in bytes of frames."""

    down: dict[int, int]
    up: dict[int, int]


@dataclass(frozen=True)
class Clock:
    """What makes time of a run's traffic.

    Parameters
    ----------
    link
        Every client's.
    steps
        Measured seconds of one local step, by tier; the last serves every tier beyond.
    slowdowns
        How much longer it takes on the tier's devices; the last serves every tier beyond.
    local_steps
        V.
    """

    link: Link
    steps: Sequence[float]
    local_steps: int
    slowdowns: Sequence[float] = TIER_SLOWDOWNS

    def __post_init__(self) -> None:
        if not self.slowdowns or any(not 0 < slowdown < float("inf") for slowdown in self.slowdowns):
            raise ConfigError("Slowdowns are factors above 0, one a tier.")

    def training(self, tier: int) -> float:
        """Seconds that a client of ``tier`` trains in a round."""
        step = self.steps[min(tier, len(self.steps) - 1)]
        return self.local_steps * step * self.slowdowns[min(tier, len(self.slowdowns) - 1)]

    def round(self, traffic: Traffic) -> float:
        """Seconds of a round: those of its slowest client, at most."""
        return max(
            8e-6 * traffic.down[tier] / self.link.down + self.training(tier) + 8e-6 * up / self.link.up
            for tier, up in traffic.up.items()
        )

    def elapsed(self, rounds: Iterable[Traffic]) -> list[float]:
        """Seconds since the start at the end of each round."""
        return list(itertools.accumulate(self.round(traffic) for traffic in rounds))


def find_link(text: str) -> Link:
    """A link by name, or by its speeds down and up in Mbps, such as ``110.6/14``; ConfigError when it is neither."""
    if text in LINKS:
        return LINKS[text]
    speeds = _SPEEDS.fullmatch(text)
    if speeds is None:
        raise ConfigError(
            f"There is no link '{text}'; there are {', '.join(LINKS)}, or give Mbps down and up, such as 110.6/14."
        )
    return Link(float(speeds["down"]), float(speeds["up"]))


def traffic_of(metrics: RoundMetrics, tier_of: Callable[[int], int]) -> Traffic:
    """What a simulated round moved; client i, called ``client-i``, is of tier ``tier_of(i)``."""
    return Traffic(_largest(metrics.downlink, tier_of), _largest(metrics.uplink, tier_of))


def _largest(sizes: Mapping[str, int], tier_of: Callable[[int], int]) -> dict[int, int]:
    largest: dict[int, int] = {}
    for client, size in sizes.items():
        tier = tier_of(int(client.rpartition("-")[2]))
        largest[tier] = max(size, largest.get(tier, 0))
    return dict(sorted(largest.items()))


def time_to(target: float, accuracies: Sequence[float], elapsed: Sequence[float]) -> float | None:
    """Seconds until the accuracy after a round is at least ``target`` for the first time; None where it never is."""
    return next((s for accuracy, s in zip(accuracies, elapsed, strict=True) if accuracy >= target), None)
