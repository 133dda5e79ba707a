"""A broker and its sessions inside one process, for one thread: what tests and embedded fleets need of MQTT."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from paho.mqtt.client import topic_matches_sub

from edge_fl.transport.interface import Connected, Event, Message, Posted

__all__ = ["MemoryBroker", "MemorySession"]


class MemoryBroker:
    """Hands every message to the sessions that subscribed, in the order of their making."""

    def __init__(self) -> None:
        self._sessions: list[MemorySession] = []

    def session(self, subscriptions: Sequence[str]) -> "MemorySession":
        """A session with these topic filters; it is up at once."""
        made = MemorySession(self, tuple(subscriptions))
        self._sessions.append(made)
        return made

    def hand_out(self, message: Message) -> None:
        """To every session with a filter that matches, once."""
        for session in self._sessions:
            if any(topic_matches_sub(each, message.topic) for each in session.subscriptions):
                session.events.append(message)

    def leave(self, session: "MemorySession") -> None:
        """It gets no more."""
        self._sessions.remove(session)


class MemorySession:
    """One session (:class:`~edge_fl.transport.interface.Transport`); it never waits, for nothing comes by itself.

    Parameters
    ----------
    broker
        Where it is.
    subscriptions
        Its topic filters.

    Attributes
    ----------
    events
        What it has not taken yet.
    """

    def __init__(self, broker: MemoryBroker, subscriptions: tuple[str, ...]) -> None:
        self._broker, self.subscriptions = broker, subscriptions
        self.events: deque[Event] = deque([Connected()])

    def publish(self, topic: str, payload: bytes) -> Callable[[], bool]:
        """Hand it out at once."""
        self._broker.hand_out(Message(topic, payload))
        return lambda: True

    def next(self, timeout: float) -> Event | None:
        """The next event, or None; no session waits for ``timeout``."""
        del timeout
        return self.events.popleft() if self.events else None

    def post(self, item: Any) -> None:
        """Add it to what was not taken yet."""
        self.events.append(Posted(item))

    def close(self) -> None:
        """End the session."""
        self._broker.leave(self)
