"""The devices a coordinator knows: what they said of themselves, and whether they are there."""

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from edge_fl.randomness import Stream
from edge_fl.wire.messages import Register

__all__ = ["Device", "Registry"]


@dataclass
class Device:
    """One device.

    ``accepted`` is the last round whose update was taken from it (0: none) and ``digest`` that update's;
    ``gone_since`` is when its connection was lost (None while it is there), in the coordinator's monotonic seconds.
    """

    client: str
    profile: Register
    accepted: int = 0
    digest: str = ""
    gone_since: float | None = None


class Registry:
    """All registered devices.

    Parameters
    ----------
    known
        Those of a run that goes on: they count as gone since ``now``, in monotonic seconds.
    """

    def __init__(self, known: Iterable[Device] = (), now: float = 0.0) -> None:
        self._devices = {device.client: replace(device, gone_since=now) for device in known}

    def register(self, client: str, profile: Register) -> Device:
        """Take a device in, or back."""
        device = self._devices.setdefault(client, Device(client, profile))
        device.profile, device.gone_since = profile, None
        return device

    def get(self, client: str) -> Device | None:
        """The device of that id, if it ever registered."""
        return self._devices.get(client)

    def __getitem__(self, client: str) -> Device:
        return self._devices[client]

    def heard(self, client: str) -> None:
        """A message came from the client, so it is there."""
        device = self._devices.get(client)
        if device is not None:
            device.gone_since = None

    def gone(self, client: str, now: float) -> None:
        """Its connection was lost."""
        device = self._devices.get(client)
        if device is not None and device.gone_since is None:
            device.gone_since = now

    def lost(self, now: float, after: float) -> set[str]:
        """The devices gone for at least ``after`` seconds."""
        return {
            d.client for d in self._devices.values() if d.gone_since is not None and now - d.gone_since >= after
        }

    def clients(self) -> list[str]:
        """Every client that ever registered."""
        return list(self._devices)

    def present(self) -> list[str]:
        """The clients that are there, in order of their ids."""
        return sorted(d.client for d in self._devices.values() if d.gone_since is None)

    def pick(self, count: int, *, seed: int, round: int, attempt: int, excluding: Set[str]) -> list[str]:
        """Draw ``count`` present clients at random, keyed by seed, round and attempt; fewer if fewer are there."""
        pool = [client for client in self.present() if client not in excluding]
        stream = Stream.of(seed=seed, purpose="selection", round=round, index=attempt)
        return [pool[i] for i in stream.subset(len(pool), min(count, len(pool)))]
