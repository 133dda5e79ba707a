"""Workers that are processes of this machine."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from pickle import PickleBuffer
from queue import SimpleQueue
from typing import Any, cast

from device_sim.simulation.buffer_files import BufferFiles, Packed
from device_sim.simulation.parts import PARTS_AT_ONCE, Engine, by_holder
from device_sim.simulation.trainer import Trainer, power_of_two
from device_sim.simulation.worker import Hold, Job, Train, Worker
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import RunError

__all__ = ["ProcessEngine"]

_PARTS = 4  # of a round for each process, or some more
_SMALLER = 4  # times, at most: of few clients a stack is slow


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
        self._holds: dict[int, _Process] = {}  # who has the updates of a part, by its number
        self._workers = list[_Process]()
        try:
            for _ in range(processes):
                self._workers.append(_Process(bundle.root, open))
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        """The processes."""
        return len(self._workers)

    @property
    def room(self) -> int:
        """A part that is trained and one that waits, for each process."""
        return PARTS_AT_ONCE * len(self._workers) - sum(len(worker.begun) for worker in self._workers)

    def part_sizes(self, count: int) -> Iterator[int]:
        """A few parts for each process, and smaller ones at the end, so that all end at about the same time."""
        processes, left = len(self._workers), count
        largest = power_of_two(max(count // (_PARTS * processes), 1))
        least = min(largest, max(largest // _SMALLER, 2))
        while True:
            size = min(power_of_two(max(left // (2 * processes), least)), largest)
            yield size
            left -= size

    def share(self, model: bytes) -> bytes:
        """Itself: it is sent with the first part that a process gets of a round."""
        return model

    def begin(self, number: int, model: Any, job: Train | Hold) -> None:
        """Send it to a process that has the fewest."""
        worker = min(self._workers, key=lambda each: len(each.begun))
        worker.send(job, model)
        worker.begun.append(number)
        if isinstance(job, Hold):
            self._holds[number] = worker

    def finished(self) -> list[tuple[int, Any]]:
        """Answers that have come, at least one; RunError where a process was ended."""
        busy: dict[Any, _Process] = {worker.connection: worker for worker in self._workers if worker.begun}
        answers = [(worker, worker.answer()) for worker in map(busy.__getitem__, wait(busy))]
        return [(worker.begun.popleft(), answer) for worker, answer in answers]

    def do_where_held(
        self, jobs: Callable[[Sequence[int]], Job], parts: Sequence[int]
    ) -> tuple[list[tuple[list[int], Any]], list[int]]:
        """All at once; none is lost, for RunError is raised where a process was ended."""
        shares = by_holder(self._holds, parts)
        self._holds.clear()
        for worker, some in shares.items():
            worker.send(jobs(some), worker.model)
        return [(some, worker.answer()) for worker, some in shares.items()], []

    def close(self) -> None:
        """End the processes, whatever they do."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()


class _Process:
    """A worker: a process, our end of its pipe, and the files for what is large.

    ``begun`` are the numbers of the parts that it has yet to answer, in the order of its answers; ``model`` is the
    frame of a round's model that it has.
    """

    def __init__(self, root: Path, open: Callable[[Bundle], Trainer]) -> None:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self._files = BufferFiles.make(PARTS_AT_ONCE)
        try:
            self.connection, theirs = context.Pipe()
            about = theirs, self._files.folder, root, open
            self._process = context.Process(target=_serve, args=about, daemon=True)
            self._process.start()
        except BaseException:
            self._files.close()
            raise
        theirs.close()  # so that the end of the process is the end of its pipe
        self.begun = deque[int]()
        self.model = b""

    def send(self, job: Job, model: bytes) -> None:
        """Have it do a job, on a model that is sent where it has another; RunError where it was ended."""
        newer = None if model == self.model else PickleBuffer(model)
        try:
            self.connection.send(self._files.ask((job, newer)))
        except OSError as error:
            raise _ended() from error
        self.model = model

    def answer(self) -> Any:
        """Wait for its next answer; RunError where it was ended."""
        try:
            return self._files.take_back(self.connection.recv())
        except (EOFError, OSError) as error:
            raise _ended() from error

    def end(self) -> None:
        """End it, and leave nothing of it here."""
        self.connection.close()
        self._process.terminate()
        self._process.join()
        self._files.close()


def _ended() -> RunError:
    return RunError(
        "A process that trained clients was ended from outside. In a script, simulate() with processes stands under "
        "`if __name__ == '__main__':`. Where that is so, memory may be short: continue the run with --resume, or begin "
        "one with fewer --processes."
    )


def _serve(connection: Connection, folder: Path, root: Path, open: Callable[[Bundle], Trainer]) -> None:
    """Train what comes, until the parent is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this
    files = BufferFiles.open(folder)  # first, as then they have no names
    threading.Thread(target=_end_with_parent, daemon=True).start()
    jobs: SimpleQueue[tuple[Packed, Job, bytes] | None] = SimpleQueue()
    threading.Thread(target=_take_in, args=(connection, files, jobs), daemon=True).start()
    worker = Worker(partial(Bundle.load, root), open)
    with suppress(OSError):  # the parent is no more
        while (taken := jobs.get()) is not None:
            connection.send(worker.answer(files, *taken))


def _take_in(
    connection: Connection, files: BufferFiles, jobs: "SimpleQueue[tuple[Packed, Job, bytes] | None]"
) -> None:
    """Take jobs in as they come, and None when no more will."""
    model = b""
    try:
        while True:
            asked = connection.recv()
            job, newer = files.take(asked)
            model = model if newer is None else newer
            jobs.put((asked, job, model))
    except (EOFError, OSError):
        pass
    finally:
        jobs.put(None)


def _end_with_parent() -> None:
    """End this process with one that is killed, for nobody takes what the part under way would give."""
    cast("multiprocessing.process.BaseProcess", multiprocessing.parent_process()).join()
    os._exit(1)
