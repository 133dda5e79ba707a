"""The process of the coordinator: the real one, timed by what it tells its observer."""

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from broker.config import RunConfig
from broker.observer import Observer
from broker.run_folder import RoundMetrics
from broker.session import serve
from edge_fl.bench.memory import resident
from edge_fl.bundle import Bundle
from edge_fl.errors import RunError
from edge_fl.transport.connection import BrokerAddress

__all__ = ["Asking", "Served", "main"]


@dataclass(frozen=True)
class Asking:
    """A round is about to begin: these clients will be asked, with a model frame of so many bytes."""

    clients: tuple[str, ...]
    model: int


@dataclass(frozen=True)
class Served:
    """What a round took: ``seconds`` and ``cpu`` (of this process) from the first task to the last accepted update.

    ``peak`` and ``resident`` are bytes of resident memory, at the most during the round and after it; ``up`` and
    ``down`` bytes of content by client.
    """

    seconds: float
    cpu: float
    peak: int
    resident: int
    up: dict[str, int]
    down: dict[str, int]
    excused: dict[str, str]
    rejections: dict[str, int]


def main(pipe: Connection, bundle: Path, config: RunConfig, root: Path, address: BrokerAddress) -> None:
    """Serve the run; each round waits for a word from the pipe."""
    serve(bundle=Bundle.load(bundle), config=config, root=root, address=address, observer=_Stopwatch(pipe))


class _Stopwatch(Observer):
    """Holds each round back until it may begin, and says what it took."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._model = self._number = 0
        self._begun = self._last = (0.0, 0.0)
        self._awaited = 0

    def started(self, config: RunConfig, dense_bytes: int) -> None:
        self._model = dense_bytes

    def round_started(self, number: int, selected: list[str]) -> None:
        if number == self._number:
            raise RunError(f"Round {number} did not get the updates of all it asked.")
        self._number = number
        self._pipe.send(Asking(tuple(selected), self._model))
        self._pipe.recv()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew (proc(5))
        self._awaited = len(selected)
        self._begun = _clocks()

    def device(self, client: str, status: str) -> None:
        self._awaited -= status == "accepted"
        if self._awaited == 0:
            self._last = _clocks()

    def round_closed(self, metrics: RoundMetrics) -> None:
        seconds, cpu = (last - begun for last, begun in zip(self._last, self._begun, strict=True))
        self._pipe.send(
            Served(
                seconds=seconds,
                cpu=cpu,
                peak=resident("VmHWM"),
                resident=resident("VmRSS"),
                up=metrics.uplink,
                down=metrics.downlink,
                excused=metrics.excused,
                rejections=metrics.rejections,
            )
        )


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()
