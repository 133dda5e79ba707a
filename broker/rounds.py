"""One round: who was asked, who answered, and when it may be closed. No network and no clock of its own."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from broker.model import RoundSum
from edge_fl.wire.messages import Task, Verdict

__all__ = ["Report", "Round"]


@dataclass(frozen=True)
class Report:
    """An accepted update of ``size`` bytes, kept until the round closes: in ``path`` from ``offset`` on.

    One without a ``path`` is in the round's sums already.
    """

    samples: int
    loss: float
    size: int
    path: Path | None = None
    offset: int = 0

    def content(self) -> bytes:
        """Its frame."""
        assert self.path is not None
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


@dataclass
class Round:
    """A round under way.

    ``version`` is that of the model it trains, and ``max_change`` how far an update may change a parameter; ``tasks``
    what each client was asked; ``excused`` the clients that are not waited for, and why; ``verdicts`` what was answered
    to each offer, to be repeated if the answer was lost. ``tiers`` are what the clients were asked to train in,
    ``resting`` until when those who declined are let be, and ``seconds`` how long after its first task a client's
    update was there. ``deadline``, ``resting`` and ``asked_at`` (first) are seconds on the fleet's clock. ``sums`` are
    of updates that are added as they come, in the order of ids, where a fleet has them so.
    """

    number: int
    version: int
    quorum: int
    max_change: float
    deadline: float = 0.0
    tasks: dict[str, Task] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    excused: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    tiers: dict[str, int] = field(default_factory=dict)
    asked_at: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)
    sums: RoundSum | None = None

    def outstanding(self) -> list[str]:
        """The clients still to be heard of."""
        return [client for client in self.tasks if self.awaits(client)]

    def round_of(self, client: str) -> int:
        """Which round this client was asked in: an earlier one, where updates are buffered."""
        return self.tasks[client].round if client in self.tasks else self.number

    def awaits(self, client: str) -> bool:
        """Whether this client is still to be heard of."""
        return client in self.tasks and client not in self.reports and client not in self.excused

    def done(self) -> frozenset[str]:
        """The clients that have been judged, for better or worse: asking them again would bring the same update."""
        return frozenset(self.reports) | frozenset(self.verdicts)

    def unavailable(self, now: float) -> frozenset[str]:
        """The clients that are not to be asked now: those who are done, and those who declined a moment ago."""
        return self.done() | {client for client, until in self.resting.items() if now < until}

    def report(self, client: str, report: Report) -> None:
        """Count an accepted update, also of a client that was given up."""
        self.excused.pop(client, None)
        self.reports[client] = report

    def excuse(self, client: str, reason: str) -> None:
        """Wait for this client no longer."""
        if self.awaits(client):
            self.excused[client] = reason

    def took(self, now: float) -> dict[str, float]:
        """Seconds from each client's task to its update, or until now where none was taken."""
        return {client: self.seconds.get(client, now - at) for client, at in self.asked_at.items()}

    def progress(self, now: float, lost: set[str]) -> Literal["open", "complete", "short"]:
        """Whether the round may be closed (``complete``), must find more clients (``short``), or goes on."""
        if now < self.deadline and any(self.awaits(client) and client not in lost for client in self.tasks):
            return "open"
        return "complete" if len(self.reports) >= self.quorum else "short"
