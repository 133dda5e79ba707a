"""One way of one connection over an emulated link: a token bucket, and what comes late."""

import asyncio
import random
from collections.abc import Callable

from device_sim.simulation.links import SEGMENT, Link

__all__ = ["Lane"]


class Lane:
    """Carries the messages of one connection one way, in their order.

    Parameters
    ----------
    link
        Its latency, jitter and loss. As TCP mends it, a loss is a delay, of what comes behind it too.
    speed
        Mbps this way; a bucket of one TCP segment.
    chance
        Draws jitter and losses.
    """

    def __init__(self, link: Link, speed: float, chance: random.Random) -> None:
        self._link, self._random = link, chance
        self._seconds = 8e-6 / speed  # of a byte
        self._free = 0.0  # when all that was sent has left, in the loop's seconds
        self._last = 0.0  # when the last message arrives
        self._loop = asyncio.get_running_loop()

    async def enter(self, size: int) -> None:
        """Wait until a message of ``size`` bytes has left."""
        full = self._loop.time() - SEGMENT * self._seconds
        self._free = max(self._free, full) + size * self._seconds
        await asyncio.sleep(self._free - self._loop.time())

    def leave(self, size: int, arrive: Callable[[], None]) -> None:
        """Call ``arrive`` when a message that has left arrives at the other end."""
        link, chance = self._link, self._random.random
        late = link.latency + chance() * link.jitter
        if chance() < link.disturbed(size):
            late += link.recovery
        # Two calls for the same time would come in any order.
        self._last = max(self._last + 1e-6, self._loop.time() + late)
        self._loop.call_at(self._last, arrive)

    async def empty(self) -> None:
        """Wait until all that has left has arrived."""
        await asyncio.sleep(self._last - self._loop.time() + 1e-3)
