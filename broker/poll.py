"""A question to devices after their training, and its answers. No network and no clock of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from broker.run_folder import RunFolder
from edge_fl.core.errors import FrameError
from edge_fl.wire.messages import Answer, Offer, Register, Request, ToDevice

__all__ = ["Incoming", "Poll"]

_Task = TypeVar("_Task", bound=Request)
_Answer = TypeVar("_Answer", bound=Answer | Offer)


class Incoming(Protocol):
    """Where the updates come in that answer a poll."""

    def consider(self, client: str, offer: Offer, profile: Register) -> None:
        """Fetch an offered update; raises FrameError where it has no place."""

    def chunk(self, client: str, digest: str, index: int, payload: bytes) -> None:
        """Take a chunk in; raises FrameError where nobody asked for it."""

    def resume(self) -> None:
        """After a reconnect: ask at once for what is missing."""

    def tick(self) -> None:
        """Ask again for what has stalled."""

    def close(self) -> None:
        """Take no more."""


@dataclass
class Poll(ABC, Generic[_Task, _Answer]):
    """What is asked after round ``number``.

    ``tasks`` are what each client was asked, ``tiers`` in which tier, ``answers`` what was taken, and ``excused`` the
    clients that are not waited for. ``sent_at`` is when each was last sent its task, in the caller's monotonic seconds.
    Once it is ``closed`` nobody is waited for, and answers come late.
    """

    kind: ClassVar[type[Any]]
    """The message that answers."""
    statuses: ClassVar[tuple[str, str]]
    """What a device is at that was asked, and what it has done once its answer was taken; empty for nothing new."""

    number: int
    tasks: dict[str, _Task] = field(default_factory=dict)
    tiers: dict[str, int] = field(default_factory=dict)
    answers: dict[str, _Answer] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    sent_at: dict[str, float] = field(default_factory=dict)
    closed: bool = False

    def awaits(self, client: str) -> bool:
        """Whether this client is still to be heard of."""
        return client in self.tasks and not (self.closed or client in self.answers or client in self.excused)

    def outstanding(self) -> set[str]:
        """The clients still to be heard of."""
        return {client for client in self.tasks if self.awaits(client)}

    def overdue(self, since: float) -> list[str]:
        """Those of them that were last sent their task before ``since``."""
        return sorted(client for client in self.outstanding() if self.sent_at[client] < since)

    def take(self, client: str, answer: Answer | Offer, profile: Register) -> bool:
        """Count the answer of a client that registered as ``profile`` says.

        Returns
        -------
        False where this very answer was taken before: it was thought lost.

        Raises
        ------
        FrameError
            As :meth:`check`, after which the client is waited for no longer; ``late``, ``not-selected`` or
            ``duplicate`` where an answer has no place.
        """
        if self.answers.get(client) == answer:
            return False
        if self.closed or not isinstance(answer, self.kind) or answer.round != self.number:
            raise FrameError("late", f"Nobody waits for such an answer after round {answer.round}.")
        if client not in self.tasks:
            raise FrameError("not-selected", f"The client was not asked after round {self.number}.")
        if client in self.answers:
            raise FrameError("duplicate", "Another answer to this was taken already.")
        try:
            self.check(client, answer, profile)
        except FrameError:
            self.excused.add(client)
            raise
        self.answers[client] = answer
        return True

    def content_in(self, client: str) -> int:
        """Bytes of content, beside what the message itself says, in what a client is asked."""
        del client
        return 0

    def open_incoming(self, folder: RunFolder, send: Callable[[str, ToDevice], None]) -> Incoming | None:
        """Where updates that answer come in, in a run's ``folder``; None where answers are messages."""
        del folder, send
        return None

    @abstractmethod
    def check(self, client: str, answer: _Answer, profile: Register) -> None:
        """Refuse an answer that cannot be: FrameError."""
