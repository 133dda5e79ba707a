"""The devices a coordinator knows: what they said of themselves, and whether they are there."""

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

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
    ready
        Whether a device with that profile can be asked; all can unless told otherwise.
    """

    def __init__(
        self,
        known: Iterable[Device] = (),
        since: float = 0.0,
        ready: Callable[[Register], bool] = lambda _: True,
    ) -> None:
        self._ready = ready
        self._devices = {device.client: device for device in known}
        self._gone = dict.fromkeys(self._devices, since)  # in the coordinator's monotonic seconds
        self._unready = {client for client, device in self._devices.items() if not ready(device.profile)}

    def register(self, client: str, profile: Register) -> Device:
        """Take a device in, or back; one that is not ready is there for itself alone."""
        device = self._devices.setdefault(client, Device(client, profile))
        device.profile = profile
        self.heard(client)
        (self._unready.discard if self._ready(profile) else self._unready.add)(client)
        return device

    def get(self, client: str) -> Device | None:
        """The device of that id, if it ever registered."""
        return self._devices.get(client)

    def __contains__(self, client: object) -> bool:
        return client in self._devices

    def __len__(self) -> int:
        return len(self._devices)

    def __getitem__(self, client: str) -> Device:
        return self._devices[client]

    def heard(self, client: str) -> bool:
        """A message came from the client, so it is there; whether it was gone."""
        return self._gone.pop(client, None) is not None

    def gone(self, client: str, now: float) -> None:
        """Its connection was lost."""
        if client in self._devices:
            self._gone.setdefault(client, now)

    def lost(self, now: float, after: float) -> set[str]:
        """The devices gone for at least ``after`` seconds."""
        return {client for client, since in self._gone.items() if now - since >= after}

    def losses(self, clients: Iterable[str], after: float, now: float) -> list[float]:
        """When those of ``clients`` that are gone will have been so for ``after`` seconds, if that is to come."""
        times = (self._gone[client] + after for client in clients if client in self._gone)
        return [time for time in times if time > now]

    def present(self) -> list[str]:
        """The clients that are there and ready, in order of their ids."""
        return sorted(self._devices.keys() - self._gone.keys() - self._unready)

    def missing(self) -> bool:
        """Whether any client is not there, or not ready."""
        return bool(self._gone or self._unready)

    def count(self, besides: Set[str] = frozenset()) -> int:
        """How many clients are there and ready, those ``besides`` not counted."""
        missing = self._gone.keys() | self._unready
        return len(self._devices) - len(missing) - len((besides & self._devices.keys()) - missing)

    @property
    def unready(self) -> int:
        """How many clients are there, but not ready."""
        return len(self._unready - self._gone.keys())
