"""The coordinator's workers: processes that are started, given updates to fetch, and started again when they end."""

import logging
import multiprocessing
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from broker.workers.jobs import Added, AddUp, Answer, Counting, Fetch, Fetched, Forget, Job, Ready, Start
from broker.workers.worker import run_worker
from edge_fl.core.errors import ConfigError, RunError
from edge_fl.wire.sum_frame import SumHeader

__all__ = ["MOST_WORKERS", "Said", "Workers"]

_log = logging.getLogger(__name__)
MOST_WORKERS = 64
_TRIES = 3  # at starting a worker, and at adding up a share
_START_SECONDS, _END_SECONDS = 30.0, 5.0
_MOST_ENDS = 10  # of workers, without an update or a sum in between


class Said(NamedTuple):
    """What worker ``number`` said in its life ``life``; None at the end of that."""

    number: int
    life: int
    answer: Answer | None


@dataclass
class _Worker:
    """One worker: its process in this ``life``, and the updates that it was told to fetch."""

    number: int
    life: int
    process: BaseProcess
    pipe: Pipe
    jobs: dict[str, Fetch] = field(default_factory=dict)
    sums: "queue.SimpleQueue[Added | None]" = field(default_factory=queue.SimpleQueue)

    @property
    def load(self) -> int:
        """Bytes that are still to come."""
        return sum(job.ref.size for job in self.jobs.values())


class Workers:
    """Some processes that take in updates.

    They are opened with the run. An offered update is given to whoever has least to fetch. What a worker says is handed
    to ``post``, by a thread of each, and then to :meth:`heard`. A worker that ends is started again with the same
    number, and fetches anew what it was at. As a round closes, workers that have come this far add updates up.

    Parameters
    ----------
    starts
        What each works for.
    post
        Takes :class:`Said` from any thread.

    Raises
    ------
    ConfigError
        When there are to be too many.
    RunError
        When one does not start.
    """

    def __init__(self, starts: Sequence[Start], post: Callable[[Any], None]) -> None:
        if len(starts) > MOST_WORKERS:
            raise ConfigError(f"A coordinator has at most {MOST_WORKERS} workers, not {len(starts)}.")
        self._starts, self._post = {start.number: start for start in starts}, post
        self._context = multiprocessing.get_context("spawn")  # threads do not survive a fork
        self._workers: dict[int, _Worker] = {}
        self._lives = 0
        self._ends = 0  # of workers, since one did something
        try:
            for worker in [self._begin(number) for number in self._starts]:
                self._settle(worker)
        except BaseException:
            self.close()
            raise

    # --- lives

    def _begin(self, number: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=run_worker, args=(theirs, self._starts[number]), name=f"worker-{number}", daemon=True
        )
        process.start()
        theirs.close()  # so that the end of the process is the end of its pipe
        self._lives += 1
        worker = self._workers[number] = _Worker(number, self._lives, process, ours)
        return worker

    def _settle(self, worker: _Worker) -> None:
        """Wait until it hears devices, or one that is started in its place; RunError where none does."""
        for _ in range(_TRIES):
            ready = self._ready(worker)
            if ready is None:
                worker.process.kill()
                worker = self._begin(worker.number)
            elif ready.failure:
                raise RunError(f"Worker {worker.number} did not start: {ready.failure}")
            else:
                threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
                return
        raise RunError(f"Worker {worker.number} did not start: see that there is memory for it.")

    def _ready(self, worker: _Worker) -> Ready | None:
        """What it says first; None where it ends before, or says nothing."""
        longest = _START_SECONDS + self._starts[worker.number].timeout
        try:
            said = worker.pipe.recv() if worker.pipe.poll(longest) else None
        except (EOFError, OSError):
            return None
        return said if isinstance(said, Ready) else None

    def _listen(self, worker: _Worker) -> None:
        try:
            while True:
                answer = worker.pipe.recv()
                if isinstance(answer, Added):
                    worker.sums.put(answer)
                else:
                    self._post(Said(worker.number, worker.life, answer))
        except (EOFError, OSError):
            worker.sums.put(None)
            self._post(Said(worker.number, worker.life, None))

    def _again(self, number: int) -> None:
        """Start a worker that has ended, and give it what it was at."""
        before = self._workers[number]
        before.process.join(_END_SECONDS)
        self._ends += 1
        if self._ends > _MOST_ENDS:
            raise RunError(
                f"Workers ended {self._ends} times and took in nothing: see that they have memory enough, and continue "
                "the run with --resume."
            )
        _log.warning("worker %d ended (exit code %s): it is started again", number, before.process.exitcode)
        self._settle(self._begin(number))
        for job in before.jobs.values():
            self.fetch(job)

    # --- updates

    def fetch(self, job: Fetch) -> None:
        """Have a worker fetch an update; what one is at already goes on."""
        holder = next((each for each in self._workers.values() if job.client in each.jobs), None)
        if holder is not None and holder.jobs[job.client].ref == job.ref:
            return
        worker = holder or min(self._workers.values(), key=lambda each: each.load)
        worker.jobs[job.client] = job
        _send(worker, job)

    def forget(self, besides: Collection[str] = ()) -> None:
        """Break off what is on its way, but for these clients' updates."""
        kept = frozenset(besides)
        for worker in self._workers.values():
            worker.jobs = {client: job for client, job in worker.jobs.items() if client in kept}
            _send(worker, Forget(kept))

    def heard(self, said: Said) -> Answer | None:
        """What a worker said, where it still counts; RunError where one that ended does not start again."""
        worker = self._workers.get(said.number)
        if worker is None or worker.life != said.life:
            return None
        if said.answer is None:
            self._again(said.number)
        elif isinstance(said.answer, Fetched):
            self._ends = 0
            job = worker.jobs.pop(said.answer.client, None)
            return said.answer if job is not None and job.ref.digest == said.answer.digest else None
        return said.answer

    # --- sums

    def add_up(self, header: SumHeader, updates: Sequence[Counting]) -> list[tuple[Sequence[Counting], bytes]]:
        """Have workers add up shares of ``updates``: each share, and its sum as a frame.

        A share whose worker ends is added up once more. Raises RunError where that fails as well.
        """
        size = -(-len(updates) // len(self._workers))
        waiting = [tuple(updates[first : first + size]) for first in range(0, len(updates), size)]
        found: list[tuple[Sequence[Counting], bytes]] = []
        reason = "workers ended"
        for _ in range(_TRIES):
            asked = list(zip(self._workers.values(), waiting, strict=False))
            for worker, share in asked:
                _send(worker, AddUp(header, share))
            waiting = []
            for worker, share in asked:
                added = worker.sums.get()
                if added is not None and not added.failure:
                    self._ends = 0
                    found.append((share, added.frame))
                    continue
                waiting.append(share)
                if added is None:
                    self._again(worker.number)
                else:
                    reason = added.failure
            if not waiting:
                return found
        raise RunError(f"The round's updates could not be added up ({reason}): continue the run with --resume.")

    def close(self) -> None:
        """End the processes, whatever they do."""
        for worker in self._workers.values():
            worker.life = 0  # what it says from now on counts for nothing
            worker.process.terminate()
            worker.process.join()
            worker.pipe.close()
        self._workers.clear()


def _send(worker: _Worker, job: Job) -> None:
    try:
        worker.pipe.send(job)
    except OSError:  # it has ended: that is heard of, and it gets its jobs again
        _log.debug("worker %d has ended", worker.number)
