"""Which of the clients that are there are asked to train in a round."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_fl.core.randomness import Stream
from edge_fl.runs.config import SelectionPolicy
from edge_fl.runs.metrics import RoundMetrics

__all__ = ["ClientSelection"]

_NEWEST = 0.5  # weight of the last round in how long a client's rounds take
_MISSES = 2  # asked in vain so many times in a row, a client rests
_LONGEST_REST = 16  # rounds


@dataclass
class _Past:
    """What a client's rounds came to: ``last`` is the last that it was asked in (0: none), and ``seconds`` how long one
    takes, those included that closed without it. It ``missed`` so many in a row, and rests ``until`` a round.
    """

    asked: int = 0
    answered: int = 0
    last: int = 0
    seconds: float = 0.0
    missed: int = 0
    until: int = 0


_KEYS: dict[SelectionPolicy, Callable[[_Past], float]] = {
    "random": lambda _: 0.0,
    "least-recent": lambda past: past.last,
    "availability": lambda past: -(past.answered + 1) / (past.asked + 1),
    "capability": lambda past: past.seconds * (past.asked + 1) / (past.answered + 1),
}
"""The smaller, the rather a client is asked. One that never was counts as good."""


class ClientSelection:
    """A policy, and what it has learned of the clients.

    ``random`` draws uniformly. The others go by what rounds have shown: ``least-recent`` asks those first who
    were asked longest ago, ``availability`` those that answered most often of the times they were asked, ``capability``
    those that took least time for an update; draws decide between equals.

    A client that twice in a row sent no update that was taken, or one that was left out for its size, rests for 1
    round, then for 2, 4, 8 and 16. One that rests is asked where there are too few others.

    Parameters
    ----------
    policy
        Its name.
    seed
        Keys the draws.
    """

    def __init__(self, policy: SelectionPolicy, seed: int) -> None:
        self._key, self._seed = _KEYS[policy], seed
        self._past: dict[str, _Past] = defaultdict(_Past)

    def learn(self, metrics: RoundMetrics) -> None:
        """Take note of a round that is over."""
        for client in metrics.tiers:
            past = self._past[client]
            past.asked, past.last = past.asked + 1, metrics.round
            if client in metrics.uplink and metrics.clipped.get(client, 1.0) > 0:
                past.missed = past.until = 0
            else:
                past.missed += 1
                rest = min(2 ** (past.missed - _MISSES), _LONGEST_REST) if past.missed >= _MISSES else 0
                past.until = metrics.round + rest
        for client in metrics.uplink:
            self._past[client].answered += 1
        for client, seconds in metrics.took.items():
            past = self._past[client]
            past.seconds = _NEWEST * seconds + (1 - _NEWEST) * (past.seconds or seconds)

    def resting(self, round: int) -> dict[str, int]:
        """The clients that rest in ``round``, and the last round in which they do."""
        return {client: past.until for client, past in self._past.items() if past.until >= round}

    def pick(
        self, clients: Sequence[str], count: int, *, round: int, attempt: int = 0, least: int = 0
    ) -> list[str]:
        """``count`` of ``clients`` (fewer if there are fewer), in the order of their ids.

        Who rests is left out, but for as many as make up ``least``. What is drawn depends on seed, round, attempt and
        who ``clients`` are, in whatever order.
        """
        resting = self.resting(round)
        awake = [client for client in clients if client not in resting]
        picked = self._draw(awake, count, round, attempt)
        if len(picked) < min(least, count):
            asleep = [client for client in clients if client in resting]
            picked += self._draw(asleep, min(least, count) - len(picked), round, attempt)
        return sorted(picked)

    def _draw(self, clients: Sequence[str], count: int, round: int, attempt: int) -> list[str]:
        pool = sorted(clients)
        stream = Stream.of(seed=self._seed, purpose="selection", round=round, index=attempt)
        drawn = [pool[i] for i in stream.permutation(len(pool))]
        return sorted(drawn, key=lambda client: self._key(self._past[client]))[:count]
