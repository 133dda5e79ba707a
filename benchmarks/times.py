"""What turns of a benchmark take, of which the first is not counted."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from exporter.measure.memory import resident

__all__ = ["Times", "ratio"]

T = TypeVar("T")


@dataclass
class Times:
    """Seconds of CPU and of wall time, and bytes by which resident memory grew, by turn."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def measure(self, run: Callable[[], T]) -> T:
        """Take a turn; what it gave."""
        before, cpu, wall = resident("VmRSS"), time.process_time(), time.perf_counter()
        result = run()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)
        self.memory.append(resident("VmRSS") - before)
        return result


def ratio(times: Sequence[float], to: Sequence[float]) -> float:
    """The median ratio of two alternatives' turns, but for the first."""
    return median(a / b for a, b in zip(times[1:], to[1:], strict=True))
