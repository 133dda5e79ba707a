"""The coordinator's workers: processes that are started, given updates to fetch, and started again when they end."""

import logging
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import msgspec

from broker.workers.jobs import (
    Added,
    AddUp,
    Answer,
    Counting,
    Failed,
    Fetch,
    Fetched,
    Forget,
    Hears,
    Job,
    Offline,
    Ready,
    Resume,
    Start,
    decode_answers,
    encode,
)
from broker.workers.worker import run_worker
from edge_fl.core.content import Ref
from edge_fl.core.errors import BrokerError, ConfigError, FrameError, RunError, StateError
from edge_fl.identity.certificates import COORDINATOR
from edge_fl.wire.messages import Topics
from edge_fl.wire.sum_frame import SumHeader

__all__ = ["MOST_WORKERS", "Said", "Taken", "Workers", "check_count"]

_log = logging.getLogger(__name__)
MOST_WORKERS = 64
_START_SECONDS, _END_SECONDS = 60.0, 5.0
_HEAR_SECONDS = 10.0
_SUM_SECONDS = 600.0  # for a share of a round, after which its worker is taken to hang
_PATIENT_SECONDS = (
    7 * 86400.0
)  # for the broker, by a worker that is started again: the coordinator waits for it, too
_TRIES = 3  # at adding up, that workers say failed
_MOST_ENDS = 10  # for each worker, without an update or a sum in between
_MOST_ENDS_OF_ONE = 5  # of workers that could fetch the same update, after which it is refused


def check_count(count: int) -> None:
    """Raises ConfigError unless a coordinator may have so many workers."""
    if not 0 <= count <= MOST_WORKERS:
        raise ConfigError(f"A coordinator has 0 to {MOST_WORKERS} workers, not {count}.")


class Said(NamedTuple):
    """What worker ``number`` said in its life ``life``; None at the end of that."""

    number: int
    life: int
    answer: Answer | None


class Taken(NamedTuple):
    """A job that is done, and what came of it."""

    job: Fetch
    fetched: Fetched


@dataclass
class _Task:
    """A job, and how many workers ended while they could fetch its update."""

    job: Fetch
    ends: int = 0


@dataclass
class _Worker:
    """One worker in this ``life``: its process, and the updates that it was told to fetch, by client."""

    number: int
    life: int
    process: BaseProcess
    pipe: Pipe
    first: bool = True  # life of this number
    hearing: bool = False  # devices, so that it can be at its updates
    listener: threading.Thread | None = None
    tasks: dict[str, _Task] = field(default_factory=dict)
    unsent: list[Fetch] = field(default_factory=list)
    sums: "queue.SimpleQueue[Added | None]" = field(default_factory=queue.SimpleQueue)
    ready: "queue.SimpleQueue[Ready | None]" = field(default_factory=queue.SimpleQueue)
    hears: "queue.SimpleQueue[Hears | None]" = field(default_factory=queue.SimpleQueue)

    def send(self, *jobs: Job) -> None:
        """Tell it, after what is unsent; of one that has ended a listener tells, and its jobs are told the next."""
        told: list[Job] = [*self.unsent, *jobs]
        if told:
            with suppress(OSError):
                self.pipe.send_bytes(encode(told))
                self.unsent.clear()


class Workers:
    """Some processes that take in updates.

    They are opened before the run. A client's updates go to one worker, always, so nobody else writes to the client's
    place. What workers say is handed to ``post``, by a thread of each, and comes back to :meth:`heard`. A worker that
    ends is started again with the same number, and fetches anew what it was at. As a round closes they add updates up.

    Parameters
    ----------
    starts
        What each works for.
    post
        Takes what a worker said from any thread.

    Raises
    ------
    RunError
        When one does not start.
    """

    def __init__(self, starts: Sequence[Start], post: Callable[[Said], None]) -> None:
        self._starts, self._post = {start.number: start for start in starts}, post
        self._context = multiprocessing.get_context("spawn")  # threads do not survive a fork
        self._workers: dict[int, _Worker] = {}
        self._homes: dict[str, int] = {}  # whose each client is
        self._lives = self._jobs = 0
        self._ends = 0  # of workers that heard devices, since one did something
        # Of workers that end before they hear devices: since when, in monotonic seconds, and how often.
        self._down: dict[int, tuple[float, int]] = {}
        self._over = False
        try:
            for start in starts:
                self._begin(start)
            for worker in self._workers.values():
                _check_ready(worker)
        except BaseException:
            self.close()
            raise

    # --- lives

    def _begin(self, start: Start) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=run_worker, args=(theirs, start), name=f"worker-{start.number}", daemon=True
        )
        process.start()
        theirs.close()  # so that the end of the process is the end of its pipe
        self._lives += 1
        first = start.number not in self._workers
        worker = self._workers[start.number] = _Worker(start.number, self._lives, process, ours, first)
        worker.listener = threading.Thread(target=self._listen, args=(worker,), daemon=True)
        worker.listener.start()
        return worker

    def _listen(self, worker: _Worker) -> None:
        try:
            while True:
                for answer in decode_answers(worker.pipe.recv_bytes()):
                    self._sort(worker, answer)
        except (EOFError, OSError, FrameError) as error:  # who cannot be understood is ended, too
            if isinstance(error, FrameError):
                _log.error("what worker %d says cannot be read: %s", worker.number, error)
            worker.ready.put(None)
            worker.hears.put(None)
            worker.sums.put(None)
            self._post(Said(worker.number, worker.life, None))

    def _sort(self, worker: _Worker, answer: Answer) -> None:
        """Hand an answer to who waits for it."""
        worker.hearing |= isinstance(answer, Ready) and not answer.failure
        if isinstance(answer, Added):
            worker.sums.put(answer)
        elif isinstance(answer, Hears):
            worker.hears.put(answer)
        elif isinstance(answer, Ready) and worker.first:
            worker.ready.put(answer)
        else:
            self._post(Said(worker.number, worker.life, answer))

    def _again(self, before: _Worker) -> Iterator[Taken]:
        """Start a worker that has ended, and give it what it was at, but for what others have ended at, too.

        It waits for the broker by itself, and nobody waits for it.
        """
        _end(before)
        if self._over:
            return
        self._count_end(before)
        told = before.tasks.keys() - {job.client for job in before.unsent} if before.hearing else frozenset()
        _log.warning("worker %d ended (exit code %s): it is started again", before.number, before.process.exitcode)
        worker = self._begin(replace(self._starts[before.number], timeout=_PATIENT_SECONDS))
        for client, task in before.tasks.items():
            task.ends += client in told
            if task.ends >= _MOST_ENDS_OF_ONE:
                refused = Fetched(client, task.job.number, "fault", "Workers ended at it again and again.")
                yield Taken(task.job, refused)
                continue
            worker.tasks[client] = task
        worker.send(*(task.job for task in worker.tasks.values()))

    def _count_end(self, worker: _Worker) -> None:
        """Raises RunError where workers end again and again, or one does not come up.

        A busy machine needs seconds to start one, so that many may be killed before they do anything.
        """
        if not worker.hearing:
            now = time.monotonic()
            since, ends = self._down.get(worker.number, (now, 0))
            self._down[worker.number] = (since, ends + 1)
            if ends >= _MOST_ENDS and now - since > _START_SECONDS:
                raise RunError(
                    f"Worker {worker.number} ended {ends + 1} times as it started (last with exit code "
                    f"{worker.process.exitcode}): see that it has memory enough, and continue the run with --resume."
                )
            return
        self._down.pop(worker.number, None)
        self._ends += 1
        if self._ends > _MOST_ENDS * len(self._workers):
            raise RunError(
                f"Workers ended {self._ends} times and took in nothing: see that they have memory enough, and continue "
                "the run with --resume."
            )

    # --- updates

    def fetches(self, client: str, ref: Ref) -> bool:
        """Whether this update is being fetched."""
        worker = self._workers.get(self._homes.get(client, 0))
        task = None if worker is None else worker.tasks.get(client)
        return task is not None and task.job.ref == ref

    def fetch(self, job: Fetch) -> None:
        """Have the client's worker fetch an update, in place of any other of the client, after :meth:`flush`."""
        if job.client not in self._homes:
            self._homes[job.client] = min(self._workers.values(), key=lambda each: len(each.tasks)).number
        worker = self._workers[self._homes[job.client]]
        self._jobs += 1
        numbered = msgspec.structs.replace(job, number=self._jobs)
        worker.tasks[job.client] = _Task(numbered)
        worker.unsent.append(numbered)

    def flush(self) -> None:
        """Tell workers what they are to fetch."""
        for worker in self._workers.values():
            worker.send()

    def forget(self, besides: Collection[str] = ()) -> None:
        """Break off what is on its way, but for these clients' updates."""
        kept = frozenset(besides)
        for worker in self._workers.values():
            worker.tasks = {client: task for client, task in worker.tasks.items() if client in kept}
            worker.send(Forget(kept))

    def resume(self) -> None:
        """Devices can be asked again: have workers ask at once for what is missing."""
        for worker in self._workers.values():
            worker.send(Resume())

    def finish(self) -> None:
        """The run is over: who ends from now on is not started again."""
        self._over = True
        self.forget()

    def heard(self, said: Said) -> list[Answer | Taken]:
        """What a worker said, as far as it still counts.

        Raises
        ------
        RunError
            When workers end again and again, or one cannot come back.
        StateError
            When one cannot write.
        """
        worker = self._workers.get(said.number)
        if worker is None or worker.life != said.life:
            return []
        match said.answer:
            case None:
                return list(self._again(worker))
            case Fetched() as fetched:
                return self._done(worker, fetched)
            case Ready(failure=failure):
                if failure:
                    raise RunError(f"Worker {said.number} did not start again: {failure}")
                return []
            case Failed(reason=reason):
                raise StateError(f"Worker {said.number} failed: {reason}")
            case Offline(reason=reason):
                _log.warning("worker %d lost its connection to the broker (%s); reconnecting", said.number, reason)
                return []
            case answer:
                return [answer]

    def _done(self, worker: _Worker, fetched: Fetched) -> list[Answer | Taken]:
        """An update that is whole, unless the client has offered another since."""
        task = worker.tasks.get(fetched.client)
        if task is None or task.job.number != fetched.job:
            return []
        del worker.tasks[fetched.client]
        self._ends = 0
        return [Taken(task.job, fetched)]

    # --- sums

    def add_up(
        self, header: SumHeader, shared: bytes, updates: Sequence[Counting]
    ) -> Iterator[tuple[Sequence[Counting], bytes]]:
        """Have workers add up shares of ``updates``, at least one: each share, and its sum as a frame.

        ``shared`` is what their compressor was given.

        A share whose worker ends, or fails, is added up once more. Raises RunError where workers end again and again,
        or fail.
        """
        size = -(-len(updates) // len(self._workers))
        waiting = [tuple(updates[first : first + size]) for first in range(0, len(updates), size)]
        failures = 0
        while waiting:
            asked = list(zip(list(self._workers.values()), waiting, strict=False))
            for worker, share in asked:
                worker.send(AddUp(header, shared, share))
            waiting = []
            for worker, share in asked:
                added = _sum_of(worker)
                if added is not None and not added.failure:
                    self._ends = 0
                    yield share, added.frame
                    continue
                waiting.append(share)
                if added is None:
                    list(self._again(worker))  # between rounds nobody waits for an update
                    continue
                failures += 1
                if failures == _TRIES:
                    raise RunError(
                        f"The round's updates could not be added up ({added.failure}): continue the run with --resume."
                    )

    def check_hearing(self, publish: Callable[[str, bytes], object], topics: Topics) -> None:
        """Have each worker hear a chunk of the coordinator's: a broker may take a subscription and hand out nothing.

        Raises BrokerError where one does not.
        """
        for number, worker in self._workers.items():
            side = topics.up(COORDINATOR, str(number))
            publish(topics.chunk(side, "0" * 64, 0), b"")
            try:
                heard = worker.hears.get(timeout=_HEAR_SECONDS)
            except queue.Empty:
                heard = None
            if heard is None:
                raise BrokerError(
                    f"The broker lets worker {number} hear nothing on '{topics.up('+', str(number))}/chunk/#': add "
                    "that to its access list (`edge-fl provision workers` does), and send Mosquitto SIGHUP."
                )

    def close(self) -> None:
        """End the processes, whatever they do."""
        ended = list(self._workers.values())
        self._workers.clear()  # what they say from now on counts for nothing
        for worker in ended:
            _end(worker)


def _check_ready(worker: _Worker) -> None:
    """Wait until it hears devices; raises RunError where it does not."""
    try:
        ready = worker.ready.get(timeout=_START_SECONDS)
    except queue.Empty:
        ready = None
    if ready is None:
        raise RunError(
            f"Worker {worker.number} did not start: see that there is memory for it, and call edge_fl.serve below "
            "`if __name__ == '__main__':` in a script."
        )
    if ready.failure:
        raise RunError(f"Worker {worker.number} did not start: {ready.failure}")


def _sum_of(worker: _Worker) -> Added | None:
    """What it added up; None where it ended, or hangs, and is ended."""
    try:
        return worker.sums.get(timeout=_SUM_SECONDS)
    except queue.Empty:
        return None


def _end(worker: _Worker) -> None:
    """End its process, and what listens to it."""
    worker.process.kill()
    worker.process.join(_END_SECONDS)
    if worker.listener is not None and worker.listener is not threading.current_thread():
        worker.listener.join(_END_SECONDS)
    worker.pipe.close()
