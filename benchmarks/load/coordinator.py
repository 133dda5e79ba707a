"""The process of the coordinator: the real one, timed by what it tells its observer."""

import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.load.child import Place, cpu_seconds
from broker.observer import Observer
from broker.session import serve
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import RunError
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from exporter.measure.memory import resident

__all__ = ["Asking", "Served", "main", "resident_of"]


@dataclass(frozen=True)
class Asking:
    """A round is about to begin: these clients will be asked, with a model frame of so many bytes."""

    clients: tuple[str, ...]
    model: int


@dataclass(frozen=True)
class Served:
    """What a round took: ``seconds`` and ``cpu`` (of this process) from the first task to the last accepted update.

    ``moving``, ``peak`` and ``resident`` are bytes of resident memory: at the most until that update, at the most in
    the whole round, sums and evaluation included, and after it. ``up`` and ``down`` are bytes of content by client.
    ``closing`` is how long after that update the round was closed, by the clock and in CPU seconds of this process.
    ``workers`` are the CPU seconds of its workers in all of this, and ``worker_memory`` what the largest has resident.
    """

    seconds: float
    cpu: float
    moving: int
    peak: int
    resident: int
    up: dict[str, int]
    down: dict[str, int]
    closing: tuple[float, float] = (0.0, 0.0)
    workers: float = 0.0
    worker_memory: int = 0


def main(pipe: Connection, place: Place, root: Path, workers: int = 0) -> None:
    """Serve the run in the folder ``root``; each round waits for a word from the pipe. None is told at the end."""
    bundle = Bundle.load(place.bundle)
    watch = _Stopwatch(pipe)
    serve(bundle=bundle, config=place.config, root=root, address=place.address, observer=watch, workers=workers)
    pipe.send(None)


class _Stopwatch(Observer):
    """Holds each round back until it may begin, and says what it took."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._model = self._number = 0
        self._begun = self._last = (0.0, 0.0)
        self._awaited = self._moving = 0
        self._workers = 0.0

    def started(self, config: RunConfig, dense_bytes: int, finished: Sequence[RoundMetrics] = ()) -> None:
        self._model = dense_bytes

    def round_started(self, number: int, selected: list[str]) -> None:
        if number == self._number:
            raise RunError(f"Round {number} did not get the updates of all it asked.")
        self._number = number
        self._pipe.send(Asking(tuple(selected), self._model))
        self._pipe.recv()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew (proc(5))
        self._awaited = len(selected)
        self._workers = _cpu_of_workers()
        self._begun = _clocks()

    def device(self, client: str, status: str) -> None:
        if status == "accepted":
            self._awaited -= 1
            if self._awaited == 0:
                self._last = _clocks()  # which take too long to be looked at every time
                self._moving = resident("VmHWM")

    def round_closed(self, metrics: RoundMetrics) -> None:
        seconds, cpu = (last - begun for last, begun in zip(self._last, self._begun, strict=True))
        closing = [now - last for now, last in zip(_clocks(), self._last, strict=True)]
        self._pipe.send(
            Served(
                seconds=seconds,
                cpu=cpu,
                moving=self._moving,
                resident=resident("VmRSS"),
                peak=resident("VmHWM"),  # read last, so that it is no less
                up=metrics.uplink,
                down=metrics.downlink,
                closing=(closing[0], closing[1]),
                workers=_cpu_of_workers() - self._workers,
                worker_memory=max(map(resident_of, _workers()), default=0),
            )
        )


def _workers() -> list[int]:
    return [process.pid for process in multiprocessing.active_children() if process.pid is not None]


def _cpu_of_workers() -> float:
    return sum(cpu_seconds(pid) for pid in _workers())


def resident_of(pid: int) -> int:
    """Bytes that a process of this machine has resident (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()
