"""How many messages a client may have handled: one that floods costs itself its messages, and others nothing."""

from collections.abc import Container
from dataclasses import dataclass

__all__ = ["Allowance"]

_MOST_STRANGERS = 10_000  # with a bucket of their own


@dataclass(slots=True)
class _Bucket:
    size: float
    rate: float
    left: float
    at: float

    def spend(self, now: float, cost: float) -> bool:
        self.left = min(self.size, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < cost:
            return False
        self.left -= cost
        return True


class Allowance:
    """A bucket of messages for each client. Who is not registered takes from one of all strangers, too.

    A bucket is full at first. It loses a message with each that is handled, and fills again as time passes. An honest
    device sends some dozens of messages in a round. A stranger may have as many names as it likes where the broker does
    not know who is who, so the strangers' bucket bounds what all of them can do.

    Parameters
    ----------
    registered
        Whoever is.
    burst, rate
        Of a client: how much the bucket holds, and how many messages a second fill it.
    strangers
        How many times as much all strangers have together.
    """

    def __init__(
        self, registered: Container[str], *, burst: float = 1000.0, rate: float = 100.0, strangers: float = 20.0
    ) -> None:
        self._registered, self._burst, self._rate = registered, burst, rate
        self._strangers = _Bucket(strangers * burst, strangers * rate, strangers * burst, 0.0)
        self._known: dict[str, _Bucket] = {}
        self._unknown: dict[str, _Bucket] = {}

    def spend(self, client: str, now: float, cost: float = 1.0) -> bool:
        """Whether a message of ``client`` that counts as ``cost`` may be handled at ``now`` (monotonic seconds)."""
        if client in self._registered:
            return self._bucket(self._known, client, now).spend(now, cost)
        if client not in self._unknown and len(self._unknown) >= _MOST_STRANGERS:
            self._unknown.clear()
        return self._bucket(self._unknown, client, now).spend(now, cost) and self._strangers.spend(now, cost)

    def _bucket(self, buckets: dict[str, _Bucket], client: str, now: float) -> _Bucket:
        if client not in buckets:
            buckets[client] = _Bucket(self._burst, self._rate, self._burst, now)
        return buckets[client]
