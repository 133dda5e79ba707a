"""A trainer whose clients are trained by several processes, each with a trainer of its own."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import Any

from device_sim.trainer import Call, Trainer, power_of_two
from edge_fl.bundle import Bundle
from edge_fl.errors import RunError
from edge_fl.update import Update

__all__ = ["ProcessesTrainer"]

_PARTS = 4  # of a round for each process, so that all end at about the same time
_AHEAD = 2  # parts that wait for each process, or whose updates wait to be taken

_trainer: Trainer | None = None  # a process's own


class ProcessesTrainer(Trainer):
    """Shares out the clients of a round, in parts that depend on nothing but how many there are of both.

    A trainer that trains several clients at once sees those of one part alone, so that results depend on the number of
    processes, by rounding; with one that trains one after another they are the same bits.

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
        self._processes = processes
        # Not forked: torch's threads do not survive that.
        self._pool = ProcessPoolExecutor(
            processes, multiprocessing.get_context("spawn"), _begin, (bundle.root, open)
        )

    def updates(self, model: bytes, calls: Iterable[Call], count: int) -> Iterator[Update]:
        """Have parts of the calls done, a few ahead of the one whose updates are taken."""
        waiting, size = iter(calls), power_of_two(max(count // (_PARTS * self._processes), 1))
        begun: deque[Future[list[Update]]] = deque()
        try:
            while True:
                while len(begun) < _AHEAD * self._processes and (part := list(islice(waiting, size))):
                    begun.append(self._pool.submit(_updates, model, part))
                if not begun:
                    return
                yield from begun.popleft().result()
        except BrokenProcessPool as error:
            self._unblock()
            raise RunError(
                "A process that trained clients was ended from outside, perhaps for want of memory; "
                "continue the run with --resume, or begin one with fewer --processes."
            ) from error

    def _unblock(self) -> None:
        """Let the pool's own thread end: before Python 3.12 it may wait for ever to write to processes that are no more
        (https://github.com/python/cpython/issues/94777).
        """
        queue: Any = self._pool._call_queue  # type: ignore[attr-defined]
        queue._reader.close()

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)


def _begin(root: Path, open: Callable[[Bundle], Trainer]) -> None:
    global _trainer  # noqa: PLW0603  (what an initializer of a process is for)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells them
    threading.Thread(target=_follow, daemon=True).start()
    _trainer = open(Bundle.load(root))


def _follow() -> None:
    """End with a parent that was killed: its pool holds both ends of what this process waits on."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _updates(model: bytes, calls: list[Call]) -> list[Update]:
    assert _trainer is not None
    return list(_trainer.updates(model, calls, len(calls)))
