"""Workers that are processes of this machine."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from pickle import PickleBuffer
from queue import SimpleQueue
from typing import Any, cast

from device_sim.simulation.channel import Channel, ready_among
from device_sim.simulation.parts import PARTS_AT_ONCE, Engine, by_holder
from device_sim.simulation.trainer import Trainer, power_of_two
from device_sim.simulation.worker import Hold, Job, Train, Worker
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import RunError

__all__ = ["ProcessEngine"]

_PARTS = 4  # of a round for each process, so that all end at about the same time


class ProcessEngine(Engine):
    """A process has a pipe of its own, and takes the next part out of it while it trains one.

    So it never waits for this process. One that is killed is seen at once and blocks nobody (of concurrent.futures a
    killed process may block its pool for ever: https://github.com/python/cpython/issues/94777).

    Parameters
    ----------
    bundle
        On disk, where every process loads it.
    open
        Opens a process's trainer; can be pickled.
    processes
        How many.
    """

    def __init__(self, bundle: Bundle, open: Callable[[Bundle], Trainer], processes: int) -> None:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self._workers: dict[Channel, multiprocessing.process.BaseProcess] = {}
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, bundle.root, open), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of its pipe
            self._workers[Channel(ours, PARTS_AT_ONCE)] = process
        # Numbers of the parts that each has yet to answer, in the order of its answers.
        self._begun: dict[Channel, deque[int]] = {worker: deque() for worker in self._workers}
        self._models: dict[Channel, bytes] = {}  # the frame of a round's model that each has
        self._holds: dict[int, Channel] = {}  # who has the updates of a part, by its number

    @property
    def workers(self) -> int:
        """The processes."""
        return len(self._workers)

    @property
    def room(self) -> int:
        """A part that is trained and one that waits, for each process."""
        return PARTS_AT_ONCE * len(self._workers) - sum(map(len, self._begun.values()))

    def part_size(self, count: int) -> int:
        """A few parts for each process."""
        return power_of_two(max(count // (_PARTS * len(self._workers)), 1))

    def share(self, model: bytes) -> bytes:
        """Itself: it is sent with the first part that a process gets of a round."""
        return model

    def begin(self, number: int, model: Any, job: Train | Hold) -> None:
        """Send it to a process that has the fewest."""
        worker = min(self._begun, key=lambda each: len(self._begun[each]))
        _send(worker, job, None if self._models.get(worker) == model else model)
        self._models[worker] = model
        self._begun[worker].append(number)
        if isinstance(job, Hold):
            self._holds[number] = worker

    def finished(self) -> list[tuple[int, Any]]:
        """Answers that have come, at least one; RunError where a process was ended."""
        ready = ready_among([worker for worker, parts in self._begun.items() if parts])
        answers = [(worker, _received(worker)) for worker in ready]
        return [(self._begun[worker].popleft(), answer) for worker, answer in answers]

    def do_where_held(
        self, jobs: Callable[[Sequence[int]], Job], parts: Sequence[int]
    ) -> tuple[list[tuple[list[int], Any]], list[int]]:
        """All at once; none is lost, for RunError is raised where a process was ended."""
        shares = by_holder(self._holds, parts)
        self._holds.clear()
        for worker, some in shares.items():
            _send(worker, jobs(some), None)
        return [(some, _received(worker)) for worker, some in shares.items()], []

    def close(self) -> None:
        """End the processes, whatever they do."""
        for channel, process in self._workers.items():
            channel.close()
            process.terminate()
            process.join()
        self._workers.clear()
        self._begun.clear()


def _send(worker: Channel, job: Job, model: bytes | None) -> None:
    """Have a process do a job, on the model that it has where this is None."""
    try:
        worker.send((job, model and PickleBuffer(model)))
    except OSError as error:
        raise _ended() from error


def _received(worker: Channel) -> Any:
    """A process's answer to a job."""
    try:
        return worker.receive()
    except (EOFError, OSError) as error:
        raise _ended() from error


def _ended() -> RunError:
    return RunError(
        "A process that trained clients was ended from outside. In a script, simulate() with processes stands under "
        "`if __name__ == '__main__':`. Where that is so, memory may be short: continue the run with --resume, or begin "
        "one with fewer --processes."
    )


def _serve(connection: Connection, root: Path, open: Callable[[Bundle], Trainer]) -> None:
    """Train what comes, until the parent is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this
    threading.Thread(target=_end_with_parent, daemon=True).start()
    parent = Channel(connection, PARTS_AT_ONCE)
    jobs: SimpleQueue[tuple[Job, bytes] | None] = SimpleQueue()
    threading.Thread(target=_take_in, args=(parent, jobs), daemon=True).start()
    worker = Worker(partial(Bundle.load, root), open)
    with suppress(OSError):  # the parent is no more
        while (job := jobs.get()) is not None:
            try:
                parent.send(worker.do(*job))
            except RunError as error:
                parent.send(error)


def _take_in(parent: Channel, jobs: "SimpleQueue[tuple[Job, bytes] | None]") -> None:
    """Take jobs out of the pipe as they come, and None when no more will."""
    model = b""
    try:
        while True:
            job, newer = parent.receive()
            model = model if newer is None else newer
            jobs.put((job, model))
    except (EOFError, OSError):
        pass
    finally:
        jobs.put(None)


def _end_with_parent() -> None:
    """End this process with one that is killed, for nobody takes what the part under way would give."""
    cast("multiprocessing.process.BaseProcess", multiprocessing.parent_process()).join()
    os._exit(1)
