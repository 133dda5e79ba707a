"""A battery that training drains."""

import time
from collections.abc import Callable, Sequence

from edge_fl.core.errors import DeclinedError

__all__ = ["Battery"]

_LOWEST = 0.05  # share of what it holds below which a device would rather not train


class Battery:
    """What powers one device while it trains.

    Parameters
    ----------
    joules
        What it holds when full.
    level
        What it holds now, as a share of that.
    watts
        Drawn while the device trains; being charged makes up for it, and for no more.
    charging
        Seconds of ``clock``, from ... to ..., of being charged.
    clock
        Seconds of the device's time.
    """

    def __init__(
        self,
        joules: float,
        *,
        level: float,
        watts: float,
        charging: Sequence[tuple[float, float]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._joules, self._watts, self._charging, self._clock = joules, watts, charging, clock
        self.level = level

    def check(self) -> None:
        """Raise DeclinedError when the device is not charged and has too little left to train."""
        if self.level < _LOWEST and not self._charged():
            raise DeclinedError(f"The battery is at {self.level:.1%}, and the device is not being charged.")

    def drain(self, seconds: float) -> None:
        """Account for training of so many seconds of the device's time that end now."""
        if not self._charged():
            self.level = max(0.0, self.level - seconds * self._watts / self._joules)

    def _charged(self) -> bool:
        now = self._clock()
        return any(since <= now < until for since, until in self._charging)
