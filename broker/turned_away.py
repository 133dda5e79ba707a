"""Who was turned away at the embedded broker's door: counted on its thread, taken on the coordinator's."""

import threading
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["AtDoor", "TurnedAway"]

_MOST = 10_000  # clients and codes that wait to be taken


class AtDoor(NamedTuple):
    """How many ``times`` the same was turned away, and why the last one was."""

    times: int
    reason: str


class TurnedAway:
    """Counts by client (empty: a stranger) and code; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[tuple[str, str], AtDoor] = {}

    def add(self, client: str, code: str, reason: str) -> None:
        """Count one; once 10,000 pairs wait, new clients count as strangers."""
        with self._lock:
            if (client, code) not in self._counted and len(self._counted) >= _MOST:
                client = ""
            before = self._counted.get((client, code))
            self._counted[client, code] = AtDoor(1 if before is None else before.times + 1, reason)

    def take(self) -> Mapping[tuple[str, str], AtDoor]:
        """What came since the last call."""
        with self._lock:
            counted, self._counted = self._counted, {}
        return counted
