"""One worker: hears devices' chunks, checks updates, and adds them up, as the coordinator has it."""

import logging
import signal
import threading
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import msgspec

from broker.acceptance import check_update
from broker.held_update import held_update, reach_of
from broker.update_file import Place, UpdateFile
from broker.uploads import Uploads
from broker.workers.jobs import (
    Added,
    AddUp,
    Answer,
    Fetch,
    Fetched,
    Forget,
    Job,
    Ready,
    Refused,
    Start,
    Wants,
)
from edge_fl.aggregation.exact_sums import ExactSum
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import Missing, Ref
from edge_fl.core.errors import EdgeFLError, FrameError, said
from edge_fl.recipes.own import use_code
from edge_fl.recipes.recipe import open_recipe
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Connected, Dropped, Message, Posted, Transport
from edge_fl.wire.frame import decode_frame
from edge_fl.wire.messages import Topics
from edge_fl.wire.sum_frame import encode_sum

__all__ = ["Worker", "run_worker"]

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.25
_BURST = 64  # events taken before what stalls is looked at


def run_worker(pipe: Pipe, start: Start) -> None:
    """A worker's process, until the coordinator's end of ``pipe`` is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator, which ends this process
    connection = None
    try:
        use_code(start.code)
        connection = Connection(
            address=start.address,
            client_id=f"coordinator-{start.run}-worker-{start.number}",
            subscriptions=[f"{Topics(start.fleet).up('+', str(start.number))}/chunk/#"],
        )
        worker = Worker(pipe, start, connection)
        connection.open(timeout=start.timeout)
    except EdgeFLError as error:
        pipe.send(Ready(str(error)))
        return
    pipe.send(Ready())
    threading.Thread(target=_hear, args=(pipe, connection), daemon=True).start()
    try:
        worker.run()
    finally:
        connection.close()


def _hear(pipe: Pipe, connection: Transport) -> None:
    """Put jobs in line with what devices send; None at the end."""
    try:
        while True:
            connection.post(pipe.recv())
    except (EOFError, OSError):
        connection.post(None)


class Worker:
    """It fetches the updates that it is told to, and keeps nothing but what is on its way.

    Chunks go to the run's file of updates. A whole update is held against what was asked, and the coordinator is told:
    once that has recorded it, the device hears so. When the round closes, the worker reads updates from the file again,
    its own or a lost worker's, and adds them up. It ends with the coordinator's end of the pipe.

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
        self._ticked = 0.0

    def run(self) -> None:
        """Do what comes until the coordinator is gone."""
        while True:
            event = self._connection.next(_TICK_SECONDS)
            taken = 0
            while event is not None:
                match event:
                    case Posted(item=None):
                        return
                    case Posted(item=job):
                        self._do(job)
                    case Connected():
                        self._uploads.resume()
                    case Message(topic=topic, payload=payload):
                        self._take(topic, payload)
                    case Dropped(topic=topic, times=times):
                        client = topic.rpartition("/")[2]
                        self._tell(Refused(client, "flood", "More came than there is room for.", times))
                    case _:
                        pass
                taken += 1
                event = self._connection.next(0.0) if taken < _BURST else None
            if (now := time.monotonic()) - self._ticked > _TICK_SECONDS:
                self._ticked = now
                self._uploads.tick()

    def _tell(self, answer: Answer) -> None:
        self._pipe.send(answer)

    def _do(self, job: Job) -> None:
        match job:
            case Fetch(client=client, ref=ref):
                self._jobs[client] = job
                self._uploads.offer(client, ref)
            case Forget(besides=besides):
                self._uploads.clear(besides)
                self._jobs = {client: held for client, held in self._jobs.items() if client in besides}
            case AddUp():
                self._tell(self._added(job))

    # --- updates on their way in

    def _place(self, client: str, ref: Ref) -> Place:
        job = self._jobs[client]
        return Place(self._opened(job.path), job.offset, ref.size)

    def _opened(self, path: Path) -> UpdateFile:
        if self._file is None or self._file.path != path:
            if self._file is not None:
                self._file.close()
            self._file = UpdateFile(path, 0)
        return self._file

    def _take(self, topic: str, payload: bytes) -> None:
        client = ""
        try:
            _, client, chunk = self._topics.parse(topic, self._number)
            content = None if chunk is None else self._uploads.chunk(client, *chunk, payload)
        except FrameError as error:
            self._tell(Refused(client, error.code, str(error)))
            return
        if content is not None and (job := self._jobs.pop(client, None)) is not None:
            self._tell(self._judged(job, content))

    def _judged(self, job: Fetch, content: bytes) -> Fetched:
        try:
            frame = check_update(content, job.expected(self._layout, self._recipe))
        except FrameError as error:
            return Fetched(job.client, job.ref.digest, error.code, str(error))
        held = None
        if self._holds:
            reach = reach_of(self._layout, self._recipe.rule, frame.values)
            held = held_update(frame, len(content), layout=self._layout, reach=reach)
        header = frame.header
        return Fetched(job.client, job.ref.digest, samples=header.samples, loss=header.loss, held=held)

    # --- sums

    def _added(self, job: AddUp) -> Added:
        try:
            return Added(self._sum(job))
        except (FrameError, OSError) as error:
            return Added(b"", said(error))

    def _sum(self, job: AddUp) -> bytes:
        names = (tensor.name for tensor in self._layout.tensors)
        total = ExactSum(self._layout, dict(zip(names, job.header.exponents, strict=True)))
        for kept, counted in job.updates:
            frame = decode_frame(kept.content(), self._layout, kept.shared, self._recipe.decoders)
            entries = {
                tensor.name: self._recipe.rule.entries(tensor, frame.values[tensor.name])
                for tensor in self._layout.tensors
            }
            total.add(frame.selection, entries, counted)
        header = msgspec.structs.replace(job.header, clients=total.clients, weight=total.weight)
        return encode_sum(header, self._layout, total.tensors())
