"""Virtual time: how long the rounds of a simulation would have taken on given links and devices.

A round lasts as long as its slowest client, and a client downloads the model, makes its local steps, and uploads its
update::

    max over clients of  8 down / (1e6 link.down) + V * step * slowdown + 8 up / (1e6 link.up)   seconds

with ``down`` and ``up`` the bytes of encoded frames, V the local steps, ``step`` the measured seconds of one, and
``slowdown`` that of the client's tier against the machine that measured. On a link with latency, jitter or loss the
messages that the model and the update need are late besides (docs/protocol.md, sections 4 and 5): a task, a request for
the model and the model itself, an offer, a request for the update and that. What the server does counts as nothing.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from device_sim.simulation.links import Link
from edge_fl.core.errors import ConfigError
from edge_fl.runs.metrics import RoundMetrics

__all__ = ["TIER_SLOWDOWNS", "Clock", "Traffic", "time_to", "traffic_of"]

_Value = TypeVar("_Value")
_WORDS = 500  # bytes of a message that is no content, about

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
    links
        Those of the clients, by tier; the last serves every tier beyond.
    steps
        Measured seconds of one local step, by tier; the last serves every tier beyond.
    slowdowns
        How much longer it takes on the tier's devices; the last serves every tier beyond.
    local_steps
        V.
    """

    links: Sequence[Link]
    steps: Sequence[float]
    local_steps: int
    slowdowns: Sequence[float] = TIER_SLOWDOWNS

    def __post_init__(self) -> None:
        if not self.slowdowns or any(not 0 < slowdown < float("inf") for slowdown in self.slowdowns):
            raise ConfigError("Slowdowns are factors above 0, one a tier.")

    def training(self, tier: int) -> float:
        """Seconds that a client of ``tier`` trains in a round."""
        return self.local_steps * _of(self.steps, tier) * _of(self.slowdowns, tier)

    def transfers(self, tier: int, down: int, up: int) -> float:
        """Seconds until a client of ``tier`` has ``down`` bytes and, once trained, the server ``up`` bytes."""
        link = _of(self.links, tier)
        words = 4 * link.delay(_WORDS) + link.delay(down) + link.delay(up)
        return 8e-6 * down / link.down + 8e-6 * up / link.up + words

    def clients(self, traffic: Traffic) -> dict[int, float]:
        """Seconds that the slowest client of each tier takes in a round, at most."""
        return {
            tier: self.training(tier) + self.transfers(tier, traffic.down[tier], up)
            for tier, up in traffic.up.items()
        }

    def round(self, traffic: Traffic) -> float:
        """Seconds of a round: those of its slowest client, at most."""
        return max(self.clients(traffic).values())

    def elapsed(self, rounds: Iterable[Traffic]) -> list[float]:
        """Seconds since the start at the end of each round."""
        return list(itertools.accumulate(self.round(traffic) for traffic in rounds))


def _of(values: Sequence[_Value], tier: int) -> _Value:
    return values[min(tier, len(values) - 1)]


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
