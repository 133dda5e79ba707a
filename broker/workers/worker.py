"""One worker: hears devices' chunks, checks updates, and adds them up, as the coordinator has it."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from broker.acceptance import check_update
from broker.held_update import held_update, sum_frame
from broker.update_file import Place, UpdateFile
from broker.uploads import Uploads
from broker.workers.jobs import (
    Added,
    AddUp,
    Answer,
    Failed,
    Fetch,
    Fetched,
    Forget,
    Hears,
    Job,
    Offline,
    Ready,
    Rejected,
    Resume,
    Start,
    Wants,
    decode_jobs,
    encode,
)
from edge_fl.aggregation.exact_sums import ExactSum, entries_of, reach_of
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import Missing, Ref
from edge_fl.core.errors import FrameError, StateError, said
from edge_fl.identity.certificates import COORDINATOR
from edge_fl.recipes.own import use_code
from edge_fl.recipes.recipe import open_recipe
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Connected, Disconnected, Dropped, Event, Message, Posted, Transport
from edge_fl.wire.frame import decode_frame
from edge_fl.wire.messages import Topics

__all__ = ["Worker", "run_worker"]

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.25
# Events, and seconds, until the coordinator is told what came of them. What is not told yet is lost with this process.
_BURST, _BURST_SECONDS = 16, 0.02
_MOST_REJECTED = 1000  # clients whose rejections are told apart between two ticks


def run_worker(pipe: Pipe, start: Start) -> None:
    """A worker's process, until the coordinator's end of ``pipe`` is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator, which ends this process
    try:
        use_code(start.code)
        connection = Connection(
            address=start.address,
            client_id=f"coordinator-{start.run}-worker-{start.number}",
            subscriptions=[f"{Topics(start.fleet).up('+', str(start.number))}/chunk/#"],
        )
        worker = Worker(pipe, start, connection)
        threading.Thread(target=_hear, args=(pipe, connection), daemon=True).start()
        connection.open(timeout=start.timeout)
    except Exception as error:  # of the user's own code, too
        pipe.send_bytes(encode([Ready(said(error))]))
        return
    pipe.send_bytes(encode([Ready()]))
    worker.run()


def _hear(pipe: Pipe, connection: Transport) -> None:
    """Put jobs in line with what devices send, and end with the coordinator, whatever is in line."""
    try:
        while True:
            for job in decode_jobs(pipe.recv_bytes()):
                connection.post(job)
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:  # a job that cannot be read is no better than none
        _log.exception("what the coordinator says cannot be read")
        os._exit(1)


class Worker:
    """It fetches the updates that it is told to, and keeps nothing but what is on its way.

    Chunks go to the run's file of updates. A whole update is held against what was asked, and the coordinator is told:
    once that has recorded it, the device hears so. When the round closes, the worker reads updates from the file again,
    its own or another's, and adds them up. It ends with the coordinator's end of the pipe.

    Parameters
    ----------
    pipe
        To the coordinator.
    start
        What it works for.
    connection
        A session that hears what devices send to this worker.
    """

    def __init__(self, pipe: Pipe, start: Start, connection: Transport) -> None:
        bundle = Bundle.load(start.bundle)
        self._pipe, self._connection, self._number = pipe, connection, str(start.number)
        self._layout, self._recipe = bundle.layout, open_recipe(start.method, dict(start.parameters))
        self._topics, self._holds = Topics(start.fleet), start.holds
        self._jobs: dict[str, Fetch] = {}
        self._uploads = Uploads(lambda client, missing: self._tell(Wants(client, Missing(*missing))), self._place)
        self._file: UpdateFile | None = None
        self._rejected: dict[tuple[str, str], tuple[int, str]] = {}  # how often, and why last, by client and code
        self._answers: list[Answer] = []  # not told yet
        self._ticked = 0.0

    def run(self) -> None:
        """Do what comes, for as long as the process lives."""
        while True:
            event = self._connection.next(_TICK_SECONDS)
            taken, until = 0, time.monotonic() + _BURST_SECONDS
            while event is not None:
                self._handle(event)
                taken += 1
                event = self._connection.next(0.0) if taken < _BURST and time.monotonic() < until else None
            if (now := time.monotonic()) - self._ticked > _TICK_SECONDS:
                self._ticked = now
                self._guarded(self._uploads.tick)
                self._tell_rejections()
            self._flush()

    def _handle(self, event: Event) -> None:
        match event:
            case Posted(item=AddUp() as job):
                self._tell(self._added(job))
            case Posted(item=job):
                self._guarded(lambda: self._do(job))
            case Connected():
                self._guarded(self._uploads.resume)
            case Disconnected(reason=reason):
                self._tell(Offline(reason))
            case Message(topic=topic, payload=payload):
                self._guarded(lambda: self._take(topic, payload))
            case Dropped(topic=topic, times=times):
                self._reject(topic.rpartition("/")[2], "flood", "More came than there is room for.", times)

    def _guarded(self, do: Callable[[], None]) -> None:
        """Do something that may write to the file of updates; the coordinator is told where that fails."""
        try:
            do()
        except (StateError, OSError) as error:
            self._tell(Failed(said(error)))

    def _tell(self, answer: Answer) -> None:
        self._answers.append(answer)

    def _flush(self) -> None:
        if not self._answers:
            return
        try:
            self._pipe.send_bytes(encode(self._answers))
        except OSError:  # the coordinator is gone
            os._exit(0)
        self._answers.clear()

    def _reject(self, client: str, code: str, reason: str, times: int = 1) -> None:
        """Count it: a flood here is not to be one there."""
        before = self._rejected.get((client, code))
        known = before is not None or len(self._rejected) < _MOST_REJECTED
        key = (client if known else "", code)
        self._rejected[key] = (self._rejected.get(key, (0, ""))[0] + times, reason)

    def _tell_rejections(self) -> None:
        for (client, code), (times, reason) in self._rejected.items():
            self._tell(Rejected(client, code, reason, times))
        self._rejected.clear()

    def _do(self, job: Job) -> None:
        match job:
            case Fetch(client=client, ref=ref):
                if job.path.exists():  # or its round is closed
                    self._jobs[client] = job
                    self._uploads.drop(client)
                    self._uploads.offer(client, ref)
            case Forget(besides=besides):
                self._uploads.clear(besides)
                self._jobs = {client: held for client, held in self._jobs.items() if client in besides}
                self._close()
            case Resume():
                self._uploads.resume()

    # --- updates on their way in

    def _place(self, client: str, ref: Ref) -> Place:
        job = self._jobs[client]
        return Place(self._opened(job.path), job.offset, ref.size)

    def _opened(self, path: Path) -> UpdateFile:
        if self._file is None or self._file.path != path:
            self._file = UpdateFile(path, 0)
        return self._file

    def _close(self) -> None:
        """Keep no file that nothing goes to."""
        if self._file is not None and not self._jobs:
            self._file.close()
            self._file = None

    def _take(self, topic: str, payload: bytes) -> None:
        client = ""
        try:
            _, client, chunk = self._topics.parse(topic, self._number)
            if client == COORDINATOR:
                self._tell(Hears())
                return
            content = None if chunk is None else self._uploads.chunk(client, *chunk, payload)
        except FrameError as error:
            self._reject(client, error.code, str(error))
            return
        if content is not None and (job := self._jobs.pop(client, None)) is not None:
            self._tell(self._judged(job, content))

    def _judged(self, job: Fetch, content: bytes) -> Fetched:
        try:
            return self._checked(job, content)
        except FrameError as error:
            return Fetched(job.client, job.number, error.code, str(error))
        except Exception as error:  # of a decoder of the user's own, or of memory: it costs one update
            _log.exception("an update of '%s' could not be checked", job.client)
            return Fetched(job.client, job.number, "fault", f"{type(error).__name__}: {said(error)}.")

    def _checked(self, job: Fetch, content: bytes) -> Fetched:
        frame, held = check_update(content, job.expected(self._layout, self._recipe)), None
        if self._holds:
            reach = reach_of(entries_of(self._layout, self._recipe.rule, frame.values))
            held = held_update(frame, len(content), layout=self._layout, reach=reach)
        return Fetched(job.client, job.number, samples=frame.header.samples, loss=frame.header.loss, held=held)

    # --- sums

    def _added(self, job: AddUp) -> Added:
        try:
            return Added(self._sum(job))
        except Exception as error:  # as in _judged
            _log.exception("updates could not be added up")
            return Added(b"", said(error))

    def _sum(self, job: AddUp) -> bytes:
        names = (tensor.name for tensor in self._layout.tensors)
        total = ExactSum(self._layout, dict(zip(names, job.header.exponents, strict=True)))
        for kept, counted in job.updates:
            frame = decode_frame(kept.content(), self._layout, job.shared, self._recipe.decoders)
            total.add(frame.selection, entries_of(self._layout, self._recipe.rule, frame.values), counted)
        return sum_frame(job.header, self._layout, total)
