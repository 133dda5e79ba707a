"""Fair timing on a shared machine: alternatives take turns, and each is told by its median."""

import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["medians"]

_WARM_UP = 5


def medians(alternatives: Mapping[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """Median seconds of each alternative over ``repeats`` turns, all of them in every turn."""
    for run in alternatives.values():
        for _ in range(_WARM_UP):
            run()
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    for _ in range(repeats):
        for name, run in alternatives.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(taken) for name, taken in times.items()}
