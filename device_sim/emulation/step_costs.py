"""What a program takes on a core of this machine, found once for all devices of a fleet."""

import fcntl
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

__all__ = ["StepCosts"]

_BATCHES, _SECONDS, _MOST = (
    5,
    0.01,
    20,
)  # how often a batch is timed, and how long it is at most, in seconds and runs


class StepCosts:
    """Seconds of processor time of one run, by program and shapes of its inputs.

    Whoever needs one first measures it, many runs in a row and the fastest batch of them, and the others wait, and
    read it: so that the steps of two devices differ by their profiles alone. A run between two waits would not do, for
    a core that has slept has its caches to fill: a step of Fashion-MNIST's perceptron then takes 1.5 ms, not 0.6.

    Parameters
    ----------
    path
        Where they are written down, for all processes of a fleet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, float] = {}

    def of(self, key: str, run: Callable[[], object]) -> float:
        """The seconds of what is called ``key``; ``run`` runs it."""
        if key not in self._known:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                self._known = dict(msgspec.json.decode(line) for line in file)
                if key not in self._known:
                    self._known[key] = _measured(run)
                    file.write(msgspec.json.encode((key, self._known[key])) + b"\n")
        return self._known[key]


def _measured(run: Callable[[], object]) -> float:
    run()  # allocates
    runs = max(1, min(_MOST, int(_SECONDS / max(_timed(run, 1), 1e-9))))
    return min(_timed(run, runs) for _ in range(_BATCHES))


def _timed(run: Callable[[], object], runs: int) -> float:
    started = time.thread_time()
    for _ in range(runs):
        run()
    return (time.thread_time() - started) / runs
