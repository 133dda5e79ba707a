"""The device agent: a loop that follows what the coordinator wants, and can be killed at any point of it."""

import logging
import time
from collections.abc import Callable

from msgspec import UNSET

from edge_fl.agent.aggregation import Aggregation
from edge_fl.agent.capabilities import registration
from edge_fl.agent.conversation import Conversation, Superseded
from edge_fl.agent.envelope import open_envelope
from edge_fl.agent.failure import failure_of
from edge_fl.agent.held_model import HeldModel
from edge_fl.agent.kept_model import KeptModel, read_model, write_model
from edge_fl.agent.opening import Opener, in_process_of_its_own
from edge_fl.agent.settings import AgentSettings
from edge_fl.agent.state import StateFolder
from edge_fl.core.arrays import packed
from edge_fl.core.atomic import write_atomically
from edge_fl.core.bundle import MANIFEST, SEAL, Bundle, parse_manifest, seal_of
from edge_fl.core.content import LARGEST, Ref
from edge_fl.core.errors import (
    BundleError,
    ConfigError,
    DataError,
    EdgeFLError,
    FrameError,
    RefusedError,
    RuntimeMissingError,
    StateError,
    said,
)
from edge_fl.core.frozen import FROZEN
from edge_fl.core.layout import Layout
from edge_fl.core.log import log_fields
from edge_fl.core.server_half import State
from edge_fl.data.fit import fitted_but_texts
from edge_fl.data.held_out import HeldOut, Split
from edge_fl.data.sources.base import DataSource
from edge_fl.identity.file import device_identity
from edge_fl.metrics.text import scores_text
from edge_fl.training.personal import remembered
from edge_fl.training.update import Update
from edge_fl.wire.frame import decode_frame, largest_frame
from edge_fl.wire.messages import (
    AggregationRequest,
    CollectedStatistics,
    CollectStatistics,
    Evaluate,
    Evaluated,
    Failed,
    Finished,
    Measured,
    Register,
    Registered,
    Request,
    SendMasked,
    Task,
)
from edge_fl.worker.work import Work

__all__ = ["Agent", "AgentSettings"]

_log = logging.getLogger(__name__)
_LARGEST_MANIFEST = 16 << 20  # bytes
_LARGEST_PROGRAM = 256 << 20
_FINAL_SECONDS, _FETCH_SECONDS = 10.0, 300.0  # for the answer of who gives out the final model, and for the model


class Agent:
    """One device.

    Parameters
    ----------
    settings
        How it runs.
    source
        Its own data.
    open
        Opens the bundle: :func:`in_process_of_its_own`, or :func:`in_this_process`.
    consent
        Called before a model is trained or evaluated; raises DeclinedError where the device would rather not, which the
        coordinator is told.

    Raises
    ------
    ConfigError
        When no such share of the data can be held out, or the identity is another device's.
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
        open: Opener = in_process_of_its_own,
        consent: Callable[[], None] = lambda: None,
    ) -> None:
        _check_identity(settings)
        self._settings, self._open, self._consent = settings, open, consent
        self._source = HeldOut(source, settings.test_share, settings.client)
        self._data = self._source.split()
        self._folder = StateFolder(settings.state, settings.client)
        self._talk = Conversation(
            settings.broker,
            settings.client,
            settings.fleet,
            self._introduce,
            envelope=open_envelope(settings.broker.access.signing, settings.state),
            once=settings.once,
        )
        self._opened: tuple[Registered, Work] | None = None
        self._unusable: tuple[Registered, Exception] | None = None
        self._measured: Measured | None = None  # of the newest rehearsals
        self._model = HeldModel()
        self._aggregation = Aggregation(
            settings.state, settings.broker.access.signing, holders=settings.demands.holders or 2
        )
        self._over: Finished | None = None  # of the run whose final model was asked for

    def run(self) -> None:
        """Serve until the run ends (``once``) or for ever.

        Raises
        ------
        BrokerError
            When no broker answers at first.
        RefusedError
            When the coordinator does not want this device, with ``once``, or whose protocol it does not speak.
        DataError
            When the device's data does not fit the model.
        """
        self._talk.open(timeout=self._settings.connect_timeout)
        try:
            while True:
                self._talk.listen()
                try:
                    self._follow()
                    self._keep_model()
                except Superseded:
                    continue
                if self._talk.finished is not None and self._settings.once:
                    return
        except BaseException:  # a coordinator that heard nothing would wait for this device
            self._talk.leave()
            raise
        finally:
            self._close_bundle()
            self._talk.close()
            self._folder.close()

    def _introduce(self) -> Register:
        return registration(
            runtime=self._settings.runtime,
            samples=len(self._data.train.y),
            tier=self._settings.tier,
            test_samples=len(self._data.test.y),
            measured=self._measured,
        )

    def _follow(self) -> None:
        """Bring what the device has to what the coordinator wants."""
        registered, task = self._talk.registered, self._talk.task
        if registered is None:
            return
        if self._opened is None or self._opened[0] != registered:
            self._close_bundle()
            if self._unusable is None or self._unusable[0] != registered:
                self._prepare(registered)
        if task is not None:
            with log_fields(run=task.run, round=task.round):
                self._do(task)
            self._talk.task = None

    def _prepare(self, registered: Registered) -> None:
        """Have the run's programs ready. Where its bundle is none for this device, every task fails, and says why.

        What is wrong with the device itself ends it.
        """
        try:
            bundle = self._fetch_bundle(registered)
            data = _fitted(self._data, bundle)
            work = self._open(bundle, self._settings)
        except (DataError, RuntimeMissingError, StateError, RefusedError, Superseded):
            raise
        except Exception as error:  # a bundle is a stranger's, and so is what it makes of our libraries
            _log.error("the bundle of run %s cannot be used: %s", registered.run, said(error))
            self._unusable = (registered, error)
            return
        work.hold(data)
        self._opened = (registered, work)
        if registered.rehearsals:
            self._measure(registered, work)

    def _close_bundle(self) -> None:
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None

    def _fetch_bundle(self, registered: Registered) -> Bundle:
        """The bundle's manifest and this runtime's programs, fetched once and kept in the state folder."""

        def wanted() -> bool:
            return self._talk.registered == registered

        folder = self._folder.bundle(registered.manifest.digest, besides=self._kept_manifest())
        try:
            return Bundle.load(folder, runtime=self._settings.runtime)
        except BundleError:
            _log.info("fetching bundle %s", registered.manifest.digest[:12])
        raw = self._talk.fetch(registered.manifest, largest=_LARGEST_MANIFEST, wanted=wanted)
        manifest = parse_manifest(raw, where=f"manifest {registered.manifest.digest[:12]}")
        for name in manifest.program_files(self._settings.runtime):
            entry = manifest.files[name]
            largest = LARGEST if name == FROZEN else _LARGEST_PROGRAM
            self._talk.fetch_into(folder / name, Ref(entry.sha256, entry.size), largest=largest, wanted=wanted)
        write_atomically(folder / MANIFEST, raw)
        write_atomically(folder / SEAL, seal_of(raw))
        return Bundle.load(folder, runtime=self._settings.runtime)

    def _keep_model(self) -> None:
        """Once a run is over, keep what it gives; a coordinator that has gone by then is asked no second time."""
        finished = self._talk.finished
        if not self._settings.keep_model or finished is None or finished == self._over or self._opened is None:
            return
        self._over, (registered, work) = finished, self._opened
        try:
            final = self._talk.final(finished, _FINAL_SECONDS)
        except Superseded:
            _log.warning("the coordinator does not send the final model of run %s", finished.run)
            return
        until = time.monotonic() + _FETCH_SECONDS
        layout = work.bundle.layout
        try:
            frame = self._talk.fetch(
                final.model,
                largest=largest_frame(layout),
                wanted=lambda: self._talk.finished == finished and time.monotonic() < until,
            )
            decode_frame(frame, layout)
            own = self._personal(finished.run, finished.rounds, layout)
            if layout.personal and not own:
                _log.warning("this device has trained in no round: its personal layers are as the bundle has them")
            kept = KeptModel(
                finished.run, registered.manifest.digest, final.width, final.statistics, frame, packed(own)
            )
            write_model(self._folder.root, kept)
        except (FrameError, StateError) as error:
            _log.warning("the final model of run %s is not kept: %s", finished.run, error)
        else:
            _log.info("kept the final model of run %s, width %g", finished.run, final.width / 1000)

    def _kept_manifest(self) -> str | None:
        """The digest of the bundle whose model is kept; a damaged model keeps nothing."""
        try:
            kept = read_model(self._folder.root)
        except StateError as error:
            _log.warning("%s", error)
            return None
        return None if kept is None else kept.manifest

    def _measure(self, registered: Registered, work: Work) -> None:
        """Tell the coordinator how long a step of each rehearsal takes here."""
        found = tuple(self._step_seconds(task, work) for task in registered.rehearsals)
        _log.info("seconds a step: %s", ", ".join("-" if s is None else f"{s:.4f}" for s in found))
        self._measured = Measured(registered.run, found)
        self._talk.register()

    def _step_seconds(self, task: Task, work: Work) -> float | None:
        try:
            return work.rehearse(task)
        except EdgeFLError as error:
            _log.warning("this device cannot do a task of one tier: %s", error)
            return None

    def _do(self, task: Task | Request) -> None:
        if self._opened is None:
            assert self._unusable is not None
            failed = failure_of(task, self._unusable[1])
            self._talk.send(failed) if isinstance(task, Task) else self._talk.answer(task, failed)
        elif isinstance(task, Task):
            self._work(task, self._opened[1])
        elif isinstance(task, Evaluate | CollectStatistics):
            self._answer(task, self._opened[1])
        else:
            self._aggregate(task)

    def _work(self, task: Task, work: Work) -> None:
        """Train one task and see its update accepted or rejected; a failure is told to the coordinator."""
        try:
            started = time.perf_counter()
            state = self._folder.method(task.run)
            if state.last() >= task.round:  # a repetition that came late: training would go on from its own end
                return
            self._settings.demands.check(task)
            self._consent()
            self._aggregation.begin(task)
            self._look_at_data(work)
            update = self._train(task, work, state.before(task.accepted))
            _log.info("round %d: loss %.4f in %.2f s", task.round, update.loss, time.perf_counter() - started)
            state.stage(task.round, update.state)
            if task.withheld:
                self._aggregation.announce(update, work.bundle.layout)
            verdict = self._talk.upload(task, update.frame)
        except (RefusedError, Superseded):
            raise
        except Exception as error:  # a method or a metric of the owner's may raise anything
            self._talk.send(failure_of(task, error))
            return
        if verdict.accepted:
            state.accept()
        else:
            state.discard()
            _log.warning("round %d was rejected (%s): %s", task.round, verdict.code, verdict.reason)

    def _answer(self, task: Evaluate | CollectStatistics, work: Work) -> None:
        """Find what is asked of a model, and say it; a failure is told to the coordinator."""
        answer: Evaluated | CollectedStatistics | Failed
        try:
            self._settings.demands.check(task)
            self._consent()
            self._look_at_data(work)
            answer = self._score(task, work) if isinstance(task, Evaluate) else self._collect(task, work)
        except (RefusedError, Superseded):
            raise
        except Exception as error:  # a method or a metric of the owner's may raise anything
            answer = failure_of(task, error)
        self._talk.answer(task, answer)

    def _aggregate(self, task: AggregationRequest) -> None:
        """Do what is asked in secure aggregation; a failure is told to the coordinator."""

        def fetch(ref: Ref, largest: int) -> bytes:
            return self._talk.fetch(ref, largest=largest, wanted=lambda: self._talk.task is task)

        try:
            if not isinstance(task, SendMasked):
                self._talk.answer(task, self._aggregation.answer(task, fetch))
                return
            self._talk.upload(task, self._aggregation.masked(task))
            _log.info("round %d: sent the update masked", task.round)
        except (RefusedError, Superseded):
            raise
        except Exception as error:
            self._talk.answer(task, failure_of(task, error))

    def _look_at_data(self, work: Work) -> None:
        """Take the data as it is now; no update may claim more samples than were registered."""
        data, before = self._source.split(), self._data
        if data is before:
            return
        held = _fitted(data, work.bundle)
        self._data = data
        work.hold(held)
        if data.sizes != before.sizes:
            self._talk.register()

    def _train(self, task: Task, work: Work, state: State) -> Update:
        secret = None if task.clipping is UNSET else self._folder.secret()
        return work.train(task, self._fetch_model(task, work.bundle.layout), state, secret)

    def _score(self, task: Evaluate, work: Work) -> Evaluated:
        if not len(self._data.test.y):
            raise DataError("No sample of this device is held out; start it with a --test-share.")
        model = self._fetch_model(task, work.bundle.layout)
        answer, scores = work.score(task, model, self._personal(task.run, task.round, work.bundle.layout))
        _log.info("after round %d: loss %.4f, %s", task.round, answer.loss, scores_text(scores))
        return answer

    def _collect(self, task: CollectStatistics, work: Work) -> CollectedStatistics:
        model = self._fetch_model(task, work.bundle.layout)
        frame = work.collect(task, model, self._personal(task.run, task.round, work.bundle.layout))
        _log.info("after round %d: collected statistics at width %g", task.round, task.width / 1000)
        return CollectedStatistics(task.run, task.round, frame)

    def _personal(self, run: str, round: int, layout: Layout) -> State:
        """The personal tensors as ``round`` left them."""
        return remembered(self._folder.remembered(run, round)) if layout.personal else {}

    def _fetch_model(self, task: Task | Evaluate | CollectStatistics, layout: Layout) -> bytes:
        """The frame of the task's model, if not held already, for as long as the task is wanted."""
        largest = largest_frame(layout)
        return self._model.of(
            task,
            layout,
            lambda ref: self._talk.fetch(ref, largest=largest, wanted=lambda: self._talk.task is task),
        )


def _fitted(data: Split, bundle: Bundle) -> Split:
    """The bundle's tokenizer is a stranger's, so it reads texts where its programs run."""
    return Split(fitted_but_texts(data.train, bundle), fitted_but_texts(data.test, bundle))


def _check_identity(settings: AgentSettings) -> None:
    access = settings.broker.access
    if access.signing is not None:
        device_identity(access.signing)
    if access.name not in (None, settings.client):
        raise ConfigError(
            f"The identity is {access.name}'s, and this device is called {settings.client}: start it with --id "
            f"{access.name}, or with that --user."
        )
    if settings.demands.holders is not None and access.signing is None:
        raise ConfigError(
            "--require-secure-aggregation needs --identity: without signed keys a coordinator could make up the other "
            "devices."
        )
