"""What was turned away, told in batches: a flood of bad messages must not cost a transaction and a line each."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from broker.observer import Observer
from broker.store import Store

__all__ = ["Refusals"]

_RECORD_SECONDS, _AGAIN_SECONDS = 0.25, 10.0
_MOST_WAITING = 10_000  # clients and codes
_Key = tuple[int, str, str]


class Refusals:
    """Counts what is turned away.

    The record hears of it four times a second at the most. The observer hears of a client and code at once, and then
    every ten seconds, with how many there were meanwhile.

    Parameters
    ----------
    store
        The run's record.
    observer
        Told of each client and code.
    now
        Monotonic seconds.

    Attributes
    ----------
    counted
        How many messages and updates were turned away, by code since :meth:`take`.
    """

    def __init__(self, store: Store, observer: Observer, now: Callable[[], float] = time.monotonic) -> None:
        self.counted: Counter[str] = Counter()
        self._store, self._observer, self._now = store, observer, now
        self._recorded = -_RECORD_SECONDS
        self._waiting: dict[_Key, tuple[int, str]] = {}  # for the record
        self._untold: dict[_Key, tuple[int, str]] = {}  # for the observer
        self._told: dict[_Key, float] = {}  # when it heard last

    def add(self, round: int, client: str, code: str, reason: str, times: int = 1) -> None:
        """Count what ``client`` (empty: a stranger) sent while ``round`` (0: none) is under way."""
        self.counted[code] += times
        key = (round, client, code)
        for waiting in (self._waiting, self._untold):
            before, _ = waiting.get(key, (0, ""))
            waiting[key] = before + times, reason
        if len(self._untold) >= _MOST_WAITING:
            self.tell()

    def tell_in_time(self) -> None:
        """Tell of what waits, unless that was done just now."""
        now = self._now()
        if self._waiting and now - self._recorded >= _RECORD_SECONDS:
            self._record()
        if self._untold:
            self._tell([key for key in self._untold if now - self._told.get(key, -math.inf) >= _AGAIN_SECONDS])

    def tell(self) -> None:
        """Tell of all that waits."""
        self._record()
        self._tell(list(self._untold))
        self._told.clear()

    def _record(self) -> None:
        self._recorded = self._now()
        waiting, self._waiting = self._waiting, {}
        if waiting:
            self._store.reject(waiting)

    def _tell(self, keys: Sequence[_Key]) -> None:
        for key in keys:
            (_, client, code), (times, reason) = key, self._untold.pop(key)
            self._told[key] = self._now()
            self._observer.rejected(client, code, reason, times)

    def take(self) -> dict[str, int]:
        """By code, since the last call; all that waits is told."""
        self.tell()
        counted = dict(self.counted)
        self.counted.clear()
        return counted

    def recount(self, rejections: Mapping[str, int]) -> None:
        """Add those of a round that was broken off."""
        self.counted.update(rejections)
