"""Fair timing on a shared machine: alternatives take turns, and each is told by its median."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

__all__ = ["medians", "turns"]

Name = TypeVar("Name", bound=Hashable)

_WARM_UP = 3


def medians(
    alternatives: Mapping[Name, Callable[[], object]],
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, float]:
    """Median seconds of each alternative over ``repeats`` turns, all of them in every turn."""
    taken = turns(alternatives, repeats=repeats, clock=clock)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def turns(
    alternatives: Mapping[Name, Callable[[], object]],
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, list[float]]:
    """Seconds of ``clock`` that each alternative takes in each of ``repeats`` turns, all of them in every turn."""
    for run in alternatives.values():
        for _ in range(_WARM_UP):
            run()
    times: dict[Name, list[float]] = {name: [] for name in alternatives}
    for _ in range(repeats):
        for name, run in alternatives.items():
            started = clock()
            run()
            times[name].append(clock() - started)
    return times
