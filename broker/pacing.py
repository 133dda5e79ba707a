"""When a round asks clients, waits, or closes. Nothing here speaks, writes, or reads a clock: the coordinator does."""

import logging
import math
from dataclasses import dataclass
from typing import Literal, Protocol

from broker.client_selection import ClientSelection
from broker.privacy import Mechanism
from broker.registry import Registry
from broker.rounds import Round
from broker.store import UnderWay
from edge_fl.core.errors import RunError
from edge_fl.runs.config import RunConfig

__all__ = [
    "ATTEMPTS",
    "LATE",
    "LOST",
    "OVERDUE",
    "Ask",
    "Decision",
    "Devices",
    "Pacing",
    "Synchronous",
    "Wait",
]

_log = logging.getLogger(__name__)
ATTEMPTS = 3
LATE, LOST = "late", "lost"
OVERDUE = (LATE, LOST)  # why a round closed without a client: it was slow, or it was gone


@dataclass(frozen=True)
class Ask:
    """Ask these clients, in this attempt at the round."""

    clients: list[str]
    attempt: int


@dataclass(frozen=True)
class Devices:
    """Wait until so many devices are there that the round may still ask."""

    count: int


@dataclass(frozen=True)
class Wait:
    """Take in what comes; ``until`` is the next instant at which time alone may change the decision."""

    until: float


Decision = Ask | Devices | Wait | Literal["close"]
"""The coordinator asks, waits for devices, takes in what comes, or closes the round."""


class Pacing(Protocol):
    """Decides about one round after the other. All times are seconds on the fleet's clock.

    Attributes
    ----------
    quorum
        How many updates close a round.
    carries
        Whether clients that still train go on into the next round.
    """

    quorum: int
    carries: bool

    def needed(self, number: int) -> int:
        """How many devices must be there before a round is begun; 0 where it waits for none."""
        ...

    def begin(self, current: Round, broken_off: UnderWay | None, now: float) -> UnderWay | None:
        """Begin a round; says which part of the one that was broken off still stands."""
        ...

    def decide(self, current: Round, there: Registry, now: float) -> Decision:
        """The next thing to do, once late and lost clients are excused; RunError when nothing can help the round."""
        ...

    def took(self, current: Round, there: Registry, now: float) -> dict[str, float]:
        """Close a round; says the seconds that each client took, or takes by now."""
        ...


class Synchronous:
    """Asks ``clients_per_round`` clients, waits for all until the deadline, and needs the quorum.

    A round that is short of updates asks others, and then the same ones again, :data:`ATTEMPTS` times in all.

    Parameters
    ----------
    config
        The run's.
    selection
        Picks the clients.
    privacy
        Draws whom a round asks in place of ``selection``, each by the same chance, in a private run. Then a round asks
        nobody else later, and needs the quorum of those that it asked.
    """

    carries = False

    def __init__(self, config: RunConfig, selection: ClientSelection, privacy: Mechanism | None = None) -> None:
        self._privacy = privacy
        self.quorum = config.needed
        self._config, self._selection = config, selection
        self._attempt = self._last = 0
        self._next: Literal["ask", "devices", "answers"] = "ask"

    def needed(self, number: int) -> int:
        """As many as the first round asks; then a quorum."""
        return self.quorum if number > 1 else max(self._config.clients_per_round, self._config.min_clients)

    def begin(self, current: Round, broken_off: UnderWay | None, now: float) -> UnderWay | None:
        """Everything that was asked still stands, and is its attempt's ask."""
        self._attempt = 0 if broken_off is None else broken_off.attempt
        self._last = self._attempt + ATTEMPTS - 1
        self._next = "ask" if broken_off is None else "answers"
        if self._privacy is not None and broken_off is not None and self._config.by_chance:
            current.quorum = self._quorum_of(len(broken_off.tasks))
        return broken_off

    def decide(self, current: Round, there: Registry, now: float) -> Decision:
        """Ask; wait for answers; if they are too few, wait for devices and ask once more."""
        if self._next == "devices":
            self._next = "ask"
            return Devices(current.quorum - len(current.reports))
        if self._next == "ask":
            self._next = "answers"
            return self._ask(current, there, now)
        after = self._config.gone_after
        progress = current.progress(now, there.lost(now, after))
        if progress == "open":
            return Wait(min([current.deadline, *there.losses(current.outstanding(), after, now)]))
        if progress == "complete":
            return "close"
        _log.warning("round %d is short of devices (attempt %d)", current.number, self._attempt + 1)
        if self._attempt == self._last:
            why = "".join(
                f" '{client}' {reason.rstrip('.')}." for client, reason in list(current.excused.items())[:1]
            )
            raise RunError(
                f"Round {current.number} got {len(current.reports)} of the {current.quorum} updates it needs in "
                f"{ATTEMPTS} attempts.{why}"
            )
        self._attempt, self._next = self._attempt + 1, "devices"
        return self.decide(current, there, now)

    def _ask(self, current: Round, there: Registry, now: float) -> Ask:
        """As many clients as the round still needs: who was not asked yet, then all but those whose part is done."""
        for client in current.outstanding():
            current.excuse(client, LATE)
        present, done = there.present(), current.unavailable(now)
        current.deadline = now + self._config.deadline
        if not self._attempt and (drawn := self._drawn(present, current.number)) is not None:
            current.quorum = self._quorum_of(len(drawn))
            return Ask(drawn, self._attempt)
        if self._config.by_chance:
            return Ask(
                [client for client in present if client in current.parts and client not in done], self._attempt
            )
        missing = self._config.clients_per_round - len(current.reports)
        fresh = [client for client in present if client not in current.parts]
        again = [client for client in present if client in current.parts and client not in done]
        number, attempt = current.number, self._attempt
        least = current.quorum - len(current.reports)
        picked = self._selection.pick(fresh, missing, round=number, attempt=attempt, least=least)
        left = missing - len(picked), least - len(picked)
        picked += self._selection.pick(again, left[0], round=number, attempt=attempt, least=left[1])
        return Ask(picked, attempt)

    def _drawn(self, present: list[str], number: int) -> list[str] | None:
        return None if self._privacy is None else self._privacy.picks(present, number)

    def _quorum_of(self, asked: int) -> int:
        return math.ceil(self._config.quorum * asked - 1e-9)

    def took(self, current: Round, there: Registry, now: float) -> dict[str, float]:
        """Nobody is awaited any longer."""
        took, lost = current.took(now), there.lost(now, 0.0)
        for client in current.outstanding():
            current.excuse(client, LOST if client in lost else LATE)
        return took
