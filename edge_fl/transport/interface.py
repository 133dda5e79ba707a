"""What a transport is: messages by topic, and whether the session is up."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Connected", "Disconnected", "Dropped", "Event", "Message", "Posted", "Transport"]


@dataclass(frozen=True)
class Connected:
    """The session is up and every subscription acknowledged."""


@dataclass(frozen=True)
class Disconnected:
    """The session is down; it is being brought up again.

    ``short`` counts the sessions in a row that ended within ten seconds, with this one; 0 where this one did not.
    """

    reason: str
    short: int = 0


@dataclass(frozen=True)
class Message:
    """One message that arrived."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Dropped:
    """So many messages on ``topic``, or below it, found no room, and are lost; an empty topic is several."""

    topic: str
    times: int


@dataclass(frozen=True)
class Posted:
    """What another thread of this process has for the session's owner."""

    item: Any


Event = Connected | Disconnected | Message | Dropped | Posted


class Transport(Protocol):
    """One session, subscribed to what its owner needs. No message is sure to arrive, or to arrive once."""

    def publish(self, topic: str, payload: bytes) -> Callable[[], bool]:
        """Send to whoever subscribed; what is returned tells whether the message has left."""
        ...

    def next(self, timeout: float) -> Event | None:
        """The next event, or None after ``timeout`` seconds."""
        ...

    def post(self, item: Any) -> None:
        """Have :meth:`next` give ``item``, in turn, as :class:`Posted`; any thread may."""
        ...

    def close(self) -> None:
        """End the session."""
        ...
