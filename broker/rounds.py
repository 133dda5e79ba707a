"""One round: who was asked, who answered, and when it may be closed. No network and no clock of its own."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from broker.held_update import HeldUpdate
from broker.round_sum import RoundTotal
from broker.update_file import read_update
from edge_fl.wire.messages import Task, Verdict

__all__ = ["Part", "Report", "Round"]


@dataclass(frozen=True)
class Report:
    """An accepted update of ``size`` bytes, kept until the round closes: in ``path`` from ``offset`` on.

    One without a ``path`` is in the round's sums already. ``held`` is what a worker tells of it.
    """

    samples: int
    loss: float
    size: int
    path: Path | None = None
    offset: int = 0
    held: HeldUpdate | None = None

    def content(self) -> bytes:
        """Its frame."""
        assert self.path is not None
        return read_update(self.path, self.offset, self.size)


@dataclass
class Part:
    """One client's part in a round: what it was asked, and what became of that.

    ``asked_at`` is when it was first asked, in seconds on the fleet's clock (None: by a process that is no more), and
    ``seconds`` how long after that its update was there. ``report`` is of the update that was taken. ``excused`` says
    why the client is not waited for, and is empty while it may be. ``verdict`` was answered to its last offer, to be
    repeated if the answer was lost. Before ``rests_until`` one that declined is not asked again.
    """

    task: Task
    asked_at: float | None = None
    seconds: float | None = None
    report: Report | None = None
    excused: str = ""
    verdict: Verdict | None = None
    rests_until: float = -math.inf

    @property
    def done(self) -> bool:
        """Whether it has been judged, for better or worse: asking again would bring the same update."""
        return self.report is not None or self.verdict is not None


@dataclass
class Round:
    """A round under way.

    ``version`` is that of the model it trains, ``max_change`` how far an update may change a parameter, and
    ``deadline`` seconds on the fleet's clock. ``parts`` are those of the clients that were asked. ``sums`` are of
    updates that are added as they come, in the order of ids, where a fleet has them so.
    """

    number: int
    version: int
    quorum: int
    max_change: float
    deadline: float = 0.0
    parts: dict[str, Part] = field(default_factory=dict, init=False)
    sums: RoundTotal | None = None
    _awaited: dict[str, None] = field(
        default_factory=dict, init=False
    )  # in order; it is looked at after every few messages

    @property
    def reports(self) -> dict[str, Report]:
        """The updates taken, by client."""
        return {client: part.report for client, part in self.parts.items() if part.report is not None}

    @property
    def excused(self) -> dict[str, str]:
        """Why clients are not waited for."""
        return {client: part.excused for client, part in self.parts.items() if part.excused}

    def ask(self, client: str, task: Task, now: float | None) -> None:
        """Wait for this client, from ``now`` on where it was not asked before."""
        part = self.parts.setdefault(client, Part(task))
        part.task, part.excused = task, ""
        part.asked_at = now if part.asked_at is None else part.asked_at
        if part.report is None:
            self._awaited[client] = None

    def outstanding(self) -> list[str]:
        """The clients still to be heard of."""
        return list(self._awaited)

    def round_of(self, client: str) -> int:
        """Which round this client was asked in: an earlier one, where updates are buffered."""
        return self.parts[client].task.round if client in self.parts else self.number

    def awaits(self, client: str) -> bool:
        """Whether this client is still to be heard of."""
        return client in self._awaited

    def unavailable(self, now: float) -> frozenset[str]:
        """The clients that are not to be asked now: those who are done, and those who declined a moment ago."""
        return frozenset(client for client, part in self.parts.items() if part.done or now < part.rests_until)

    def report(self, client: str, report: Report) -> None:
        """Count an accepted update, also of a client that was given up."""
        self.parts[client].report, self.parts[client].excused = report, ""
        self._awaited.pop(client, None)

    def excuse(self, client: str, reason: str) -> None:
        """Wait for this client no longer."""
        if self.awaits(client):
            self.parts[client].excused = reason
            del self._awaited[client]

    def lose(self, client: str, reason: str) -> None:
        """Count the update of this client no longer."""
        self.parts[client].report, self.parts[client].excused = None, reason

    def took(self, now: float) -> dict[str, float]:
        """Seconds from each client's task to its update, or until now where none was taken."""
        return {
            client: now - part.asked_at if part.seconds is None else part.seconds
            for client, part in self.parts.items()
            if part.asked_at is not None
        }

    def progress(self, now: float, lost: set[str]) -> Literal["open", "complete", "short"]:
        """Whether the round may be closed (``complete``), must find more clients (``short``), or goes on."""
        if now < self.deadline and any(client not in lost for client in self._awaited):
            return "open"
        return "complete" if len(self.reports) >= self.quorum else "short"
