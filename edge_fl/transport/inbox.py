"""What has come and was not taken yet: bounded, so that a flood fills no memory, and nobody's flood another's place."""

import math
import queue
import threading
import time
from collections import Counter

from edge_fl.transport.interface import Dropped, Event, Message

__all__ = ["Inbox"]

_LONGEST = 1 << 20  # bytes of a message: a chunk has 256 KiB
_MOST_OF_ONE, _BYTES_OF_ONE = 1000, 64 << 20  # messages that wait: a window has 20 chunks
_MOST, _BYTES = 100_000, 512 << 20  # of all senders
_MOST_COUNTED = 1000  # senders whose lost messages are told apart
_TELL_SECONDS = 0.25


class Inbox:
    """A queue of events with bounds for each sender and for all together.

    What is beyond a bound is dropped, and told as :class:`~edge_fl.transport.interface.Dropped`. The protocol repeats
    what matters. A sender is a topic up to ``/chunk/``. Any thread puts, one takes.
    """

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count: Counter[str] = Counter()  # of waiting messages, by sender
        self._size: Counter[str] = Counter()  # their bytes
        self._messages = self._bytes = 0
        self._dropped: Counter[str] = Counter()
        self._told = -math.inf  # when it was told last, in monotonic seconds

    def put(self, event: Event) -> None:
        """Add what happened to the session."""
        self._events.put(event)

    def put_message(self, topic: str, payload: bytes) -> None:
        """Add a message, or count it as dropped where there is no room."""
        sender, size = _sender(topic), len(payload)
        with self._lock:
            if self._full(sender, size):
                told = sender in self._dropped or len(self._dropped) < _MOST_COUNTED
                self._dropped[sender if told else ""] += 1
                return
            self._count[sender] += 1
            self._size[sender] += size
            self._messages, self._bytes = self._messages + 1, self._bytes + size
        self._events.put(Message(topic, payload))

    def get(self, timeout: float) -> Event | None:
        """The next event, or None after ``timeout`` seconds. What was dropped is told first, four times a second."""
        if self._dropped and time.monotonic() - self._told >= _TELL_SECONDS:
            with self._lock:
                sender, times = self._dropped.popitem()
            if not self._dropped:
                self._told = time.monotonic()
            return Dropped(sender, times)
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(event, Message):
            self._taken(_sender(event.topic), len(event.payload))
        return event

    def _full(self, sender: str, size: int) -> bool:
        return (
            size > _LONGEST
            or self._count[sender] >= _MOST_OF_ONE
            or self._size[sender] + size > _BYTES_OF_ONE
            or self._messages >= _MOST
            or self._bytes + size > _BYTES
        )

    def _taken(self, sender: str, size: int) -> None:
        with self._lock:
            self._messages, self._bytes = self._messages - 1, self._bytes - size
            self._count[sender] -= 1
            self._size[sender] -= size
            if not self._count[sender]:
                del self._count[sender], self._size[sender]


def _sender(topic: str) -> str:
    return topic.partition("/chunk/")[0]
