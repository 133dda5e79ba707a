"""Which devices are connected, and when each was heard of last: a file of the run folder, for `edge-fl status`."""

import time
from pathlib import Path

import msgspec

from edge_fl.core.errors import StateError
from edge_fl.core.unreadable import UNREADABLE

__all__ = ["Presence", "Seen", "read_presence"]

_FILE = "presence.json"
_EVERY = 2.0  # seconds between two writes


class Seen(msgspec.Struct, frozen=True):
    """A device: whether it is connected, and the Unix time of its last message."""

    connected: bool
    heard: float


class Presence:
    """What the gateway hears of devices, written to the run folder every two seconds in which something was heard.

    It is for people alone, so that no write waits for the disk: no run needs it to go on.

    Parameters
    ----------
    root
        The run folder.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / _FILE
        self._seen = {
            client: Seen(connected=False, heard=seen.heard) for client, seen in read_presence(root).items()
        }
        self._changed, self._written = bool(self._seen), 0.0  # nobody is connected to this coordinator yet

    def heard(self, client: str) -> None:
        """A message of the registered ``client`` came."""
        self._seen[client] = Seen(connected=True, heard=time.time())
        self._changed = True

    def gone(self, client: str) -> None:
        """Its connection was lost."""
        if client in self._seen:
            self._seen[client], self._changed = msgspec.structs.replace(self._seen[client], connected=False), True

    def write(self) -> None:
        """Write what has changed, if it is time; raises StateError where the folder cannot be written."""
        now = time.monotonic()
        if self._changed and now - self._written >= _EVERY:
            self._changed, self._written = False, now
            partial = self._path.with_suffix(".partial")
            try:
                partial.write_bytes(msgspec.json.encode(self._seen))
                partial.replace(self._path)
            except OSError as error:
                raise StateError(f"'{self._path}' cannot be written: {error.strerror}.") from error


def read_presence(root: Path) -> dict[str, Seen]:
    """What was last written of the devices of the run in ``root``; nothing of a simulation, or of a damaged file."""
    try:
        return msgspec.json.decode((root / _FILE).read_bytes(), type=dict[str, Seen])
    except (OSError, *UNREADABLE):
        return {}
