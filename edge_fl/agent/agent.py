"""The device agent: a loop that follows what the coordinator wants, and can be killed at any point of it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_fl.agent.capabilities import registration
from edge_fl.agent.failure import failure_of
from edge_fl.agent.held_model import HeldModel
from edge_fl.agent.rehearsal import rehearse
from edge_fl.agent.state import StateFolder
from edge_fl.atomic import write_atomically
from edge_fl.batch_statistics import make_statistics
from edge_fl.bundle import MANIFEST, SEAL, Bundle, Manifest, parse_manifest, seal_of
from edge_fl.data.fit import check_fit
from edge_fl.data.held_out import HeldOut, Split
from edge_fl.data.sources.base import DataSource
from edge_fl.errors import BundleError, DataError, EdgeFLError, FrameError, RefusedError
from edge_fl.evaluation import score
from edge_fl.layout import Layout
from edge_fl.log import log_fields
from edge_fl.runtimes.base import Runtime, open_runtime
from edge_fl.server_half import State
from edge_fl.transport.connection import BrokerAddress, Connected, Connection, Disconnected, Message
from edge_fl.transport.transfer import Fetcher, Sender, cut, ref_of
from edge_fl.update import Update, make_update
from edge_fl.wire.frame import Frame, largest_frame
from edge_fl.wire.messages import (
    Evaluate,
    Evaluated,
    Failed,
    Finished,
    FromDevice,
    Gather,
    Gathered,
    Gone,
    Hello,
    Measured,
    Offer,
    Ref,
    Refused,
    Registered,
    Task,
    Topics,
    Verdict,
    Want,
    decode_to_device,
    encode_message,
)

__all__ = ["Agent", "AgentSettings"]

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5
_LARGEST_MANIFEST = 16 << 20  # bytes
_LARGEST_PROGRAM = 256 << 20
_SHORT_SECONDS, _MANY_SESSIONS = 10.0, 3  # a session taken over again and again, by another device of this id
_REGISTER_SECONDS = (5.0, 30.0)  # pauses between two registrations, before the first answer and after
_OFFER_SECONDS = (2.0, 30.0)  # first and longest pause between two offers of one update


@dataclass(frozen=True)
class AgentSettings:
    """How one device runs.

    ``tier`` is its class of hardware (0, 1, ...), ``once`` ends the process with the run, ``connect_timeout`` are
    the seconds for which the first connection is tried (afterwards the agent never gives up). ``test_share`` of its
    samples are held out of training (:class:`edge_fl.data.held_out.HeldOut`).
    """

    broker: BrokerAddress
    client: str
    state: Path
    runtime: str = "onnx"
    tier: int = 0
    once: bool = False
    threads: int = 1
    connect_timeout: float = 15.0
    fleet: str = "edge-fl"
    test_share: float = 0.0


class _Superseded(Exception):  # noqa: N818  (not an error: something newer is wanted)
    """What the agent was doing is no longer wanted."""


class Agent:
    """One device.

    Parameters
    ----------
    settings
        How it runs.
    source
        Its own data.
    open
        Opens the bundle in the runtime (:func:`edge_fl.runtimes.base.open_runtime`).
    consent
        Called before a model is trained or evaluated; raises DeclinedError where the device would rather not, which the
        coordinator is told.

    Raises
    ------
    ConfigError
        When no such share of the data can be held out.
    DataError
        When the source has no data to begin with, or none is left to train on.
    StateError
        When the state folder cannot be used.
    """

    def __init__(
        self,
        settings: AgentSettings,
        source: DataSource,
        *,
        open: Callable[..., Runtime] = open_runtime,
        consent: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings, self._open, self._consent = settings, open, consent
        self._source = HeldOut(source, settings.test_share, settings.client)
        self._data = self._source.split()
        self._folder = StateFolder(settings.state, settings.client)
        topics = Topics(settings.fleet)
        self._topics, self._up = topics, topics.up(settings.client)
        down = topics.down(settings.client)
        self._connection = Connection(
            address=settings.broker,
            client_id=settings.client,
            subscriptions=[topics.all, down, f"{down}/chunk/#"],
            will=(self._up, encode_message(Gone())),
        )
        self._fetcher = Fetcher(self._send)
        self._sender = Sender(self._connection.publish, topics.chunk)
        self._arrived: dict[str, bytes] = {}
        self._outgoing: dict[str, tuple[bytes, ...]] = {}
        self._registered: Registered | None = None
        self._task: Task | Evaluate | Gather | None = None
        self._newest = ("", 0)  # run and round of the newest task heard of
        # The last answer, which may have been lost.
        self._answered: tuple[Evaluate | Gather, Evaluated | Gathered | Failed] | None = None
        self._verdict: Verdict | None = None
        self._finished: Finished | None = None
        self._runtime: tuple[Registered, Runtime] | None = None
        self._measured: Measured | None = None  # of the newest rehearsals
        self._model = HeldModel()
        self._connected_at, self._short_sessions = 0.0, 0
        self._asked = 0.0  # when it last registered, in monotonic seconds
        self._next_offer = 0.0  # monotonic seconds; a reconnect makes it now

    def run(self) -> None:
        """Serve until the run ends (``once``) or for ever.

        Raises
        ------
        BrokerError
            When no broker answers at first.
        RefusedError
            When the coordinator does not want this device.
        DataError
            When the device's data does not fit the model.
        """
        self._connection.open(timeout=self._settings.connect_timeout)
        try:
            while True:
                self._pump()
                self._repeat_registration()
                try:
                    self._follow()
                except _Superseded:
                    continue
                if self._finished is not None and self._settings.once:
                    return
        finally:
            self._connection.close()
            self._folder.close()

    def _follow(self) -> None:
        """Bring what the device has to what the coordinator wants."""
        registered, task = self._registered, self._task
        if registered is None:
            return
        if self._runtime is None or self._runtime[0] != registered:
            bundle = self._fetch_bundle(registered)
            _check_fit(self._data, bundle.manifest)
            runtime = self._open(self._settings.runtime, bundle, threads=self._settings.threads)
            self._runtime = (registered, runtime)
            if registered.rehearsals:
                self._measure(registered, runtime)
        if task is not None:
            with log_fields(run=task.run, round=task.round):
                self._do(task, self._runtime[1])
            self._task = None

    # --- what arrives

    def _pump(self) -> None:
        """Take one event in, if one comes, and keep transfers going."""
        match self._connection.next(_POLL_SECONDS):
            case Connected():
                _log.info("connected to %s as '%s'", self._settings.broker, self._settings.client)
                self._connected_at = time.monotonic()
                self._register()
                self._fetcher.resume()
                self._next_offer = 0.0
            case Disconnected(reason=reason):
                self._lost_connection(reason)
            case Message(topic=topic, payload=payload):
                try:
                    self._take(topic, payload)
                except FrameError as error:
                    _log.warning("ignored a message: %s", error)
        self._fetcher.tick()
        self._sender.advance()

    def _lost_connection(self, reason: str) -> None:
        short = time.monotonic() - self._connected_at < _SHORT_SECONDS
        self._short_sessions = self._short_sessions + 1 if short else 0
        _log.warning("connection lost (%s); reconnecting", reason)
        if self._short_sessions >= _MANY_SESSIONS:
            _log.warning(
                "the broker keeps ending this session: does another device use the id '%s'? Give each its own --id",
                self._settings.client,
            )

    def _take(self, topic: str, payload: bytes) -> None:
        _, _, chunk = self._topics.parse(topic)
        if chunk is not None:
            content = self._fetcher.chunk(*chunk, payload)
            if content is not None:
                self._arrived[chunk[0]] = content
            return
        match decode_to_device(payload):
            case Hello():
                self._register()
            case Registered() as message:
                self._registered, self._finished = message, None
            case Refused(reason=reason):
                raise RefusedError(f"The coordinator refused '{self._settings.client}': {reason}")
            case (Task() | Evaluate() | Gather()) as message if self._is_mine(message.run):
                self._hear(message)
            case Want() as message:
                self._serve(message)
            case Verdict() as message:
                self._verdict = message
            case Finished() as message if self._is_mine(message.run):
                if self._finished != message:
                    _log.info("run %s is over after %d rounds", message.run, message.rounds)
                self._finished, self._task = message, None

    def _hear(self, task: Task | Evaluate | Gather) -> None:
        """Take a task on, unless it is a repetition or was delayed; an answer that may be lost is given again."""
        if self._answered is not None and task == self._answered[0]:
            self._send(self._answered[1])
        elif task != self._task and (task.round >= self._newest[1] or task.run != self._newest[0]):
            self._task, self._newest = task, (task.run, task.round)

    def _is_mine(self, run: str) -> bool:
        """Whether a message is of the run this device is registered in; other coordinators may share the broker."""
        return self._registered is not None and self._registered.run == run

    def _repeat_registration(self) -> None:
        """Register again now and then while idle: a registration, a task or a farewell may have been lost."""
        pause = _REGISTER_SECONDS[0 if self._registered is None else 1]
        if time.monotonic() - self._asked > pause:
            self._register()

    def _register(self) -> None:
        self._asked = time.monotonic()
        message = registration(
            runtime=self._settings.runtime,
            samples=len(self._data.train.y),
            tier=self._settings.tier,
            test_samples=len(self._data.test.y),
            measured=self._measured,
        )
        self._send(message)

    def _serve(self, want: Want) -> None:
        chunks = self._outgoing.get(want.digest)
        if chunks is not None:
            self._sender.serve(self._up, chunks, want)

    def _send(self, message: FromDevice) -> None:
        self._connection.publish(self._up, encode_message(message))

    def _fetch(self, ref: Ref, *, largest: int, wanted: Callable[[], bool]) -> bytes:
        """Wait for content of at most ``largest`` bytes; raises _Superseded once it is no longer wanted."""
        if ref.size > largest:
            raise FrameError("oversize", f"The coordinator announces {ref.size} bytes where {largest} can be.")
        content = self._fetcher.want(ref)
        while content is None:
            if not wanted():
                self._fetcher.drop(ref.digest)
                raise _Superseded
            self._pump()
            content = self._arrived.pop(ref.digest, None)
        return content

    # --- what the device does

    def _fetch_bundle(self, registered: Registered) -> Bundle:
        """The bundle's manifest and this runtime's programs, fetched once and kept in the state folder."""

        def wanted() -> bool:
            return self._registered == registered

        folder = self._folder.bundle(registered.manifest.digest)
        try:
            return Bundle.load(folder, runtime=self._settings.runtime)
        except BundleError:
            _log.info("fetching bundle %s", registered.manifest.digest[:12])
        raw = self._fetch(registered.manifest, largest=_LARGEST_MANIFEST, wanted=wanted)
        manifest = parse_manifest(raw, where=f"manifest {registered.manifest.digest[:12]}")
        for name in manifest.program_files(self._settings.runtime):
            entry = manifest.files[name]
            ref = Ref(entry.sha256, entry.size)
            write_atomically(folder / name, self._fetch(ref, largest=_LARGEST_PROGRAM, wanted=wanted))
        write_atomically(folder / MANIFEST, raw)
        write_atomically(folder / SEAL, seal_of(raw))
        return Bundle.load(folder, runtime=self._settings.runtime)

    def _measure(self, registered: Registered, runtime: Runtime) -> None:
        """Tell the coordinator how long a step of each rehearsal takes here."""
        found = tuple(self._step_seconds(task, runtime) for task in registered.rehearsals)
        _log.info("seconds a step: %s", ", ".join("-" if s is None else f"{s:.4f}" for s in found))
        self._measured = Measured(registered.run, found)
        self._register()

    def _step_seconds(self, task: Task, runtime: Runtime) -> float | None:
        try:
            return rehearse(task, client=self._settings.client, runtime=runtime, samples=self._data.train)
        except EdgeFLError as error:
            _log.warning("this device cannot do a task of one tier: %s", error)
            return None

    def _do(self, task: Task | Evaluate | Gather, runtime: Runtime) -> None:
        if isinstance(task, Task):
            self._work(task, runtime)
        else:
            self._answer(task, runtime)

    def _work(self, task: Task, runtime: Runtime) -> None:
        """Train one task and see its update accepted or rejected; a failure is told to the coordinator."""
        try:
            started = time.perf_counter()
            state = self._folder.method(task.run)
            if state.last() >= task.round:  # a repetition that came late: training would go on from its own end
                return
            self._consent()
            self._look_at_data(runtime.bundle.manifest)
            update = self._train(task, runtime, state.before(task.accepted))
            _log.info("round %d: loss %.4f in %.2f s", task.round, update.loss, time.perf_counter() - started)
            state.stage(task.round, update.state)
            verdict = self._upload(task, update.frame)
        except RefusedError:
            raise
        except EdgeFLError as error:
            self._send(failure_of(task, error))
            return
        if verdict.accepted:
            state.accept()
        else:
            state.discard()
            _log.warning("round %d was rejected (%s): %s", task.round, verdict.code, verdict.reason)

    def _answer(self, task: Evaluate | Gather, runtime: Runtime) -> None:
        """Find what is asked of a model, and say it; a failure is told to the coordinator."""
        answer: Evaluated | Gathered | Failed
        try:
            self._consent()
            self._look_at_data(runtime.bundle.manifest)
            answer = self._score(task, runtime) if isinstance(task, Evaluate) else self._gather(task, runtime)
        except RefusedError:
            raise
        except EdgeFLError as error:
            answer = failure_of(task, error)
        self._answered = task, answer
        self._send(answer)

    def _look_at_data(self, manifest: Manifest) -> None:
        """Take the data as it is now; no update may claim more samples than were registered."""
        data, before = self._source.split(), self._data
        if data is before:
            return
        _check_fit(data, manifest)
        self._data = data
        if data.sizes != before.sizes:
            self._register()

    def _train(self, task: Task, runtime: Runtime, state: State) -> Update:
        return make_update(
            task,
            client=self._settings.client,
            model=self._fetch_model(task, runtime.bundle.layout),
            runtime=runtime,
            samples=self._data.train,
            state=state,
        )

    def _score(self, task: Evaluate, runtime: Runtime) -> Evaluated:
        test = self._data.test
        if not len(test.y):
            raise DataError("No sample of this device is held out; start it with a --test-share.")
        model = self._fetch_model(task, runtime.bundle.layout)
        found = score(
            runtime,
            model.values,
            test,
            width=task.width,
            statistics=task.statistics,
            top=task.top,
            batch=task.batch,
        )
        _log.info("after round %d: accuracy %.4f, loss %.4f", task.round, found.accuracy, found.loss)
        return Evaluated(task.run, task.round, len(test.y), found.loss, found.accuracy)

    def _gather(self, task: Gather, runtime: Runtime) -> Gathered:
        model = self._fetch_model(task, runtime.bundle.layout)
        client, samples = self._settings.client, self._data.train
        frame = make_statistics(task, client=client, model=model, runtime=runtime, samples=samples)
        _log.info("after round %d: gathered statistics at width %g", task.round, task.width / 1000)
        return Gathered(task.run, task.round, frame)

    def _fetch_model(self, task: Task | Evaluate | Gather, layout: Layout) -> Frame:
        """The task's model, if not held already, for as long as the task is wanted."""
        largest = largest_frame(layout)
        return self._model.of(
            task, layout, lambda ref: self._fetch(ref, largest=largest, wanted=lambda: self._task is task)
        )

    def _upload(self, task: Task, frame: bytes) -> Verdict:
        """Offer the update until the coordinator says what became of it."""
        ref = ref_of(frame)
        self._outgoing, self._verdict = {ref.digest: cut(frame)}, None
        pause, self._next_offer = _OFFER_SECONDS[0], 0.0
        while (verdict := self._verdict_on(ref)) is None:
            if self._task is not task:
                raise _Superseded
            if time.monotonic() >= self._next_offer:
                self._send(Offer(task.run, task.round, ref))
                self._next_offer, pause = time.monotonic() + pause, min(2 * pause, _OFFER_SECONDS[1])
            self._pump()
        self._outgoing = {}
        return verdict

    def _verdict_on(self, ref: Ref) -> Verdict | None:
        verdict = self._verdict
        return verdict if verdict is not None and verdict.digest == ref.digest else None


def _check_fit(data: Split, manifest: Manifest) -> None:
    for part in (data.train, data.test):
        check_fit(part, manifest)
