"""A trainer whose clients are trained by several processes, each with a trainer of its own."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from device_sim.simulation.trainer import Call, Trainer, power_of_two
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import RunError
from edge_fl.training.update import Update

__all__ = ["ProcessesTrainer"]

_PARTS = 4  # of a round for each process, so that all end at about the same time
_AHEAD = 2  # parts a process that are trained, or whose updates wait to be taken


class ProcessesTrainer(Trainer):
    """Shares out the clients of a round, in parts that depend on nothing but how many there are of both.

    A trainer that trains several clients at once sees those of one part alone, so that results depend on the number of
    processes, by rounding; with one that trains one after another they are the same bits. A process has one part at a
    time and a pipe of its own, so that one which is killed is seen at once and blocks nobody (of concurrent.futures a
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
        self._workers: dict[Connection, multiprocessing.process.BaseProcess] = {}
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, bundle.root, open), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of its pipe
            self._workers[ours] = process
        self._busy: dict[Connection, int] = {}  # the part that each is at, by number
        self._begun = 0

    def updates(self, model: bytes, calls: Iterable[Call], count: int) -> Iterator[Update]:
        """Have parts of the calls done, a few ahead of the one whose updates are taken; RunError without a process.

        What is not taken of an earlier round's is forgotten when it comes, as its numbers are lower.
        """
        size = power_of_two(max(count // (_PARTS * len(self._workers)), 1))
        waiting, idle = iter(calls), [worker for worker in self._workers if worker not in self._busy]
        done: dict[int, list[Update]] = {}
        first = taken = self._begun
        while True:
            while idle and self._begun - taken < _AHEAD * len(self._workers):
                if not (part := list(islice(waiting, size))):
                    break
                self._begin(idle.pop(), (model, part))
            if taken in done:
                yield from done.pop(taken)
                taken += 1
            elif idle and taken == self._begun:
                return
            else:
                for ready in cast("list[Connection]", wait(self._busy)):
                    answer, number = _received(ready), self._busy.pop(ready)
                    idle.append(ready)
                    if number >= first:
                        done[number] = _updates(answer)

    def _begin(self, worker: Connection, work: tuple[bytes, list[Call]]) -> None:
        """Have it do a part, which is given the next number."""
        try:
            worker.send(work)
        except OSError as error:
            raise _ended() from error
        self._busy[worker] = self._begun
        self._begun += 1

    def close(self) -> None:
        """End the processes, whatever they do."""
        for connection, process in self._workers.items():
            connection.close()
            process.terminate()
            process.join()
        self._workers.clear()


def _received(worker: Connection) -> Any:
    """A process's answer to a part."""
    try:
        return worker.recv()
    except (EOFError, OSError) as error:
        raise _ended() from error


def _updates(answer: Any) -> list[Update]:
    """Those that were answered; raises what the trainer raised."""
    if isinstance(answer, Exception):
        raise answer
    return cast("list[Update]", answer)


def _ended() -> RunError:
    return RunError(
        "A process that trained clients was ended from outside, perhaps for want of memory; continue the run with "
        "--resume, or begin one with fewer --processes."
    )


def _serve(parent: Connection, root: Path, open: Callable[[Bundle], Trainer]) -> None:
    """Train what comes, until the parent is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this
    threading.Thread(target=_end_with_parent, daemon=True).start()
    trainer: Trainer | None = None
    while True:
        try:
            model, calls = parent.recv()
        except EOFError:
            return
        answer: Any
        try:
            trainer = trainer or open(Bundle.load(root))
            answer = list(trainer.updates(model, calls, len(calls)))
        except Exception as error:  # the parent's to raise
            error.add_note(traceback.format_exc())
            answer = error
        try:
            parent.send(answer)
        except OSError:
            return


def _end_with_parent() -> None:
    """End this process with one that is killed, for nobody takes what the part under way would give."""
    cast("multiprocessing.process.BaseProcess", multiprocessing.parent_process()).join()
    os._exit(1)
