"""Fair timing on a shared machine: alternatives take turns, and each is told by its median."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

__all__ = ["medians", "turns"]

Name = TypeVar("Name", bound=Hashable)

_WARM_UP = 3


def medians(alternatives: Mapping[Name, Callable[[], object]], *, repeats: int) -> dict[Name, float]:
    """Median seconds of each alternative over ``repeats`` turns, all of them in every turn."""
    return {name: statistics.median(taken) for name, taken in turns(alternatives, repeats=repeats).items()}


def turns(alternatives: Mapping[Name, Callable[[], object]], *, repeats: int) -> dict[Name, list[float]]:
    """Seconds that each alternative takes in each of ``repeats`` turns, all of them in every turn."""
    for run in alternatives.values():
        for _ in range(_WARM_UP):
            run()
    times: dict[Name, list[float]] = {name: [] for name in alternatives}
    for _ in range(repeats):
        for name, run in alternatives.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return times
