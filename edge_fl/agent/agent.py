"""The device agent: a loop that follows what the coordinator wants, and can be killed at any point of it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_fl.agent.capabilities import registration
from edge_fl.agent.rehearsal import rehearse
from edge_fl.agent.state import StateFolder
from edge_fl.atomic import write_atomically
from edge_fl.bundle import MANIFEST, SEAL, Bundle, Manifest, parse_manifest, seal_of
from edge_fl.data.fit import check_fit
from edge_fl.data.sources.base import DataSource
from edge_fl.downlink import decode_model, follow
from edge_fl.errors import BundleError, EdgeFLError, FrameError, RefusedError
from edge_fl.layout import Layout
from edge_fl.log import log_fields
from edge_fl.runtimes.base import Runtime, open_runtime
from edge_fl.server_half import State
from edge_fl.transport.connection import BrokerAddress, Connected, Connection, Disconnected, Message
from edge_fl.transport.transfer import Fetcher, Sender, cut, ref_of
from edge_fl.update import Update, make_update
from edge_fl.wire.frame import largest_frame
from edge_fl.wire.messages import (
    Failed,
    Finished,
    FromDevice,
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
    the seconds for which the first connection is tried (afterwards the agent never gives up).
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


class _Superseded(Exception):  # noqa: N818  (not an error: something newer is wanted)
    """What the agent was doing is no longer wanted."""


class Agent:
    """One device.

    Parameters
    ----------
    settings
        How it runs.
    source
        Its own training data.
    open
        Opens the bundle in the runtime (:func:`edge_fl.runtimes.base.open_runtime`).
    consent
        Called before a task is trained; raises EdgeFLError where the device would rather not, which the coordinator is
        told.

    Raises
    ------
    DataError
        When the source has no data to begin with.
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
        self._source, self._samples = source, source.samples()
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
        self._task: Task | None = None
        self._newest = ("", 0)  # run and round of the newest task heard of
        self._verdict: Verdict | None = None
        self._finished: Finished | None = None
        self._runtime: tuple[Registered, Runtime] | None = None
        self._measured: Measured | None = None  # of the newest rehearsals
        self._model: tuple[str, int, bytes] | None = None  # run, version and frame of the model trained last
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
            check_fit(self._samples, bundle.manifest)
            runtime = self._open(self._settings.runtime, bundle, threads=self._settings.threads)
            self._runtime = (registered, runtime)
            if registered.rehearsals:
                self._measure(registered, runtime)
        if task is not None:
            with log_fields(run=task.run, round=task.round):
                self._work(task, self._runtime[1])
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
            case Task() as message if message != self._task and self._is_mine(message.run):
                if message.round >= self._newest[1] or message.run != self._newest[0]:  # else it was delayed
                    self._task, self._newest = message, (message.run, message.round)
            case Want() as message:
                self._serve(message)
            case Verdict() as message:
                self._verdict = message
            case Finished() as message if self._is_mine(message.run):
                if self._finished != message:
                    _log.info("run %s is over after %d rounds", message.run, message.rounds)
                self._finished, self._task = message, None

    def _is_mine(self, run: str) -> bool:
        """Whether a message is of the run this device is registered in; other coordinators may share the broker."""
        return self._registered is not None and self._registered.run == run

    def _repeat_registration(self) -> None:
        """Register again now and then while idle: a registration, a task or a farewell may have been lost."""
        pause = _REGISTER_SECONDS[0 if self._registered is None else 1]
        if time.monotonic() - self._asked > pause:
            self._register()

    def _register(self) -> None:
        s = self._settings
        self._asked = time.monotonic()
        samples = len(self._samples.y)
        self._send(registration(runtime=s.runtime, samples=samples, tier=s.tier, measured=self._measured))

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
            return rehearse(task, client=self._settings.client, runtime=runtime, samples=self._samples)
        except EdgeFLError as error:
            _log.warning("this device cannot do a task of one tier: %s", error)
            return None

    def _work(self, task: Task, runtime: Runtime) -> None:
        """Train one task and see its update accepted or rejected; a failure is told to the coordinator."""
        try:
            started = time.perf_counter()
            state = self._folder.method(task.run)
            if (
                state.last() >= task.round
            ):  # a repetition that came late: training again would go on from its own end
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
            _log.error("round %d failed: %s", task.round, error)
            self._send(Failed(task.run, task.round, str(error.exit_code), str(error)))
            return
        if verdict.accepted:
            state.accept()
        else:
            state.discard()
            _log.warning("round %d was rejected (%s): %s", task.round, verdict.code, verdict.reason)

    def _look_at_data(self, manifest: Manifest) -> None:
        """Take the data as it is now; no update may claim more samples than were registered."""
        samples, before = self._source.samples(), len(self._samples.y)
        if samples is self._samples:
            return
        check_fit(samples, manifest)
        self._samples = samples
        if len(samples.y) != before:
            self._register()

    def _train(self, task: Task, runtime: Runtime, state: State) -> Update:
        layout = runtime.bundle.layout
        content = self._changed(task, layout) or self._fetch_for(task, task.model, layout)
        model = decode_model(content, layout, run=task.run, round=task.round)
        self._model = None if task.changes is None else (task.run, model.header.version, content)
        return make_update(
            task,
            client=self._settings.client,
            model=model,
            runtime=runtime,
            samples=self._samples,
            state=state,
        )

    def _changed(self, task: Task, layout: Layout) -> bytes | None:
        """The task's model made of the one that is held, where there is one that its changes lead on from."""
        if self._model is None or task.changes is None or self._model[0] != task.run:
            return None
        _, version, held = self._model
        done = version - task.since
        if not 0 <= done <= len(task.changes):
            return None
        try:
            content = follow(held, [self._fetch_for(task, ref, layout) for ref in task.changes[done:]], layout)
            if ref_of(content) != task.model:
                raise FrameError("digest", "They make another model.")
        except FrameError as error:
            _log.warning("the changes do not lead to the model of round %d (%s); fetching it", task.round, error)
            self._model = None
            return None
        return content

    def _fetch_for(self, task: Task, ref: Ref, layout: Layout) -> bytes:
        return self._fetch(ref, largest=largest_frame(layout), wanted=lambda: self._task is task)

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
