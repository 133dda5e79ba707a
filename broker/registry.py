"""The devices a coordinator knows: what they said of themselves, and whether they are there."""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from edge_fl.randomness import Stream
from edge_fl.wire.messages import Register

__all__ = ["Device", "Registry"]


@dataclass
class Device:
    """One device.

    ``accepted`` is the last round whose update was taken from it (0: none) and ``digest`` that update's.
    """

    client: str
    profile: Register
    accepted: int = 0
    digest: str = ""


class Registry:
    """All registered devices.

    Parameters
    ----------
    known
        Those of a run that goes on: not there, and gone since ``since``, in monotonic seconds, which may be to come.
    """

    def __init__(self, known: Iterable[Device] = (), since: float = 0.0) -> None:
        self._devices = {device.client: device for device in known}
        self._gone = dict.fromkeys(self._devices, since)  # in the coordinator's monotonic seconds

    def register(self, client: str, profile: Register) -> Device:
        """Take a device in, or back."""
        device = self._devices.setdefault(client, Device(client, profile))
        device.profile = profile
        self.heard(client)
        return device

    def get(self, client: str) -> Device | None:
        """The device of that id, if it ever registered."""
        return self._devices.get(client)

    def __getitem__(self, client: str) -> Device:
        return self._devices[client]

    def heard(self, client: str) -> None:
        """A message came from the client, so it is there."""
        self._gone.pop(client, None)

    def gone(self, client: str, now: float) -> None:
        """Its connection was lost."""
        if client in self._devices:
            self._gone.setdefault(client, now)

    def lost(self, now: float, after: float) -> set[str]:
        """The devices gone for at least ``after`` seconds."""
        return {client for client, since in self._gone.items() if now - since >= after}

    def present(self) -> list[str]:
        """The clients that are there, in order of their ids."""
        return sorted(self._devices.keys() - self._gone.keys())

    def missing(self) -> bool:
        """Whether any client is not there."""
        return bool(self._gone)

    def count(self, besides: Set[str] = frozenset()) -> int:
        """How many clients are there, those ``besides`` not counted."""
        uncounted = sum(client in self._devices and client not in self._gone for client in besides)
        return len(self._devices) - len(self._gone) - uncounted

    def pick(self, count: int, *, seed: int, round: int, attempt: int, excluding: Set[str]) -> list[str]:
        """Draw ``count`` present clients at random, keyed by seed, round and attempt; fewer if fewer are there."""
        pool = [client for client in self.present() if client not in excluding]
        stream = Stream.of(seed=seed, purpose="selection", round=round, index=attempt)
        return [pool[i] for i in stream.subset(len(pool), min(count, len(pool)))]
