"""A round's updates on their way in: which are fetched, how each is judged, and what its device is told."""

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple, Protocol

from broker.acceptance import Expected, check_told, check_update, expected_of
from broker.held_update import HeldUpdate
from broker.observer import Observer
from broker.registry import Device, Registry
from broker.rounds import Report, Round
from broker.run_folder import RunFolder
from broker.store import Judged, Store
from broker.update_file import Place, UpdateFile
from broker.uploads import Uploads
from broker.workers.jobs import Fetch, Fetched, Rejected, Wants
from broker.workers.pool import Said, Taken, Workers
from edge_fl.core.content import Ref
from edge_fl.core.errors import FrameError, printable
from edge_fl.core.layout import Layout
from edge_fl.recipes.recipe import Recipe
from edge_fl.wire.frame import largest_frame
from edge_fl.wire.messages import LONGEST_REASON, Offer, Task, ToDevice, Verdict, Want

__all__ = ["Intake"]


class _Reject(Protocol):
    def __call__(self, client: str, code: str, reason: str, times: int = 1, /) -> None:
        """Count what a client sent in vain."""


class _Checked(NamedTuple):
    """What an update says of its training, and what a worker that holds it tells."""

    samples: int
    loss: float
    held: HeldUpdate | None = None


class Intake:
    """Fetches offered updates, judges them, and answers every offer.

    Parameters
    ----------
    layout
        The model's.
    recipe
        Its method checks what is uploaded.
    folder
        Takes accepted updates.
    store
        Keeps how updates were judged.
    registry
        The devices known; it notes what was accepted of each.
    observer
        Told of every update.
    send
        Publishes a message to a client.
    reject
        Told of the client, the code and the reason of everything that is turned away.
    workers
        Fetch and check updates; None where that happens here.

    Attributes
    ----------
    round
        Whose updates are taken; None between two rounds.
    """

    def __init__(
        self,
        layout: Layout,
        recipe: Recipe,
        *,
        folder: RunFolder,
        store: Store,
        registry: Registry,
        observer: Observer,
        send: Callable[[str, ToDevice], None],
        reject: _Reject,
        workers: Workers | None = None,
    ) -> None:
        self.round: Round | None = None
        self._layout, self._recipe, self._folder, self._store = layout, recipe, folder, store
        self._registry, self._observer, self._send, self._reject = registry, observer, send, reject
        self._largest = largest_frame(layout)
        self._offers: dict[str, Offer] = {}
        self._workers = workers
        self._uploads = Uploads(lambda client, missing: send(client, Want(*missing)), self._place)
        self._updates: UpdateFile | None = None  # of the round
        self._judged: dict[str, Judged] = {}  # updates of the round under way that the record has not yet
        self._verdicts: list[tuple[str, Verdict]] = []  # told once it has

    def task_of(self, client: str) -> Task | None:
        """What the round asked a client that it still awaits."""
        if self.round is None or not self.round.awaits(client):
            return None
        return self.round.parts[client].task

    def open_round(self, current: Round) -> None:
        """Take updates of ``current`` from now on."""
        self.round = current
        self._updates = self._folder.open_updates(current.number, self._largest)

    def close_round(self) -> None:
        """Take no more of them. Those of clients that are still awaited are gone on with once a round is opened."""
        awaited = self.round.outstanding() if self.round is not None else []
        self.round = None
        self._offers = {client: self._offers[client] for client in awaited if client in self._offers}
        self._break_off(besides=awaited)

    def clear(self) -> None:
        """Break off what is on its way."""
        self._offers.clear()
        self._break_off()

    def finish(self) -> None:
        """Take nothing more in this run."""
        self.clear()
        if self._workers is not None:
            self._workers.finish()

    def _break_off(self, besides: Collection[str] = ()) -> None:
        self._uploads.clear(besides)
        if self._workers is not None:
            self._workers.forget(besides)

    def resume(self) -> None:
        """After a reconnect: ask at once for what is missing."""
        self._uploads.resume()
        if self._workers is not None:
            self._workers.resume()

    def tick(self) -> None:
        """Ask again for what has stalled."""
        self._uploads.tick()

    def settle(self) -> None:
        """Have workers fetch; record how updates were judged, all of them at once, and only then tell the devices."""
        if self._workers is not None:
            self._workers.flush()
        if self._judged and self.round is not None:
            self._store.judge(self.round.number, self._judged)
            self._judged.clear()
        for client, verdict in self._verdicts:
            self._send(client, verdict)
        self._verdicts.clear()

    def consider(self, client: str, offer: Offer) -> None:
        """Fetch an offered update, or say why not; an answer that was lost is given again."""
        current, device = self.round, self._registry.get(client)
        part = None if current is None else current.parts.get(client)
        if device is None:
            self._judge(client, offer, "unregistered", "The client is not registered.")
        elif current is None or (offer.run, offer.round) != (self._folder.run, current.round_of(client)):
            if (offer.run, offer.update.digest) == (self._folder.run, device.digest):
                self._judge(client, offer)
            else:
                self._judge(client, offer, "late", f"Round {offer.round} of run '{offer.run}' is not under way.")
        elif part is None:
            self._judge(client, offer, "not-selected", f"The client was not asked in round {current.number}.")
        elif part.verdict is not None and part.verdict.digest == offer.update.digest:
            self._verdicts.append((client, part.verdict))
            current.excuse(client, f"rejected: {part.verdict.reason}")
        elif part.report is not None:
            self._judge(client, offer, "duplicate", "Another update of this round was taken already.")
        elif offer.update.size == 0:
            self._judge(client, offer, "truncated", "The update has 0 bytes.")
        elif offer.update.size > self._largest:
            self._judge(client, offer, "oversize", f"The update has {offer.update.size} bytes.")
        else:
            self._offers[client] = offer
            if self._workers is None:
                self._uploads.offer(client, offer.update)
            elif not self._workers.fetches(client, offer.update):
                self._workers.fetch(self._job(current, device, offer))

    def chunk(self, client: str, digest: str, index: int, payload: bytes) -> None:
        """Take a chunk in, and judge the update once it is whole.

        Raises FrameError as :meth:`edge_fl.transport.transfer.Fetcher.chunk` does, and StateError when it cannot be
        written.
        """
        content = self._uploads.chunk(client, digest, index, payload)
        if content is not None:
            self._fetched(client, lambda asked: self._checked(content, asked))

    def heard(self, said: Said) -> None:
        """Take in what a worker said; RunError where one does not start again."""
        assert self._workers is not None
        for answer in self._workers.heard(said):
            match answer:
                case Wants(client=client, missing=missing):
                    self._send(client, Want(*missing, worker=str(said.number)))
                case Rejected(client=client, code=code, reason=reason, times=times):
                    self._reject(client, code, reason, times)
                case Taken(job=job, fetched=fetched) if self._is_offered(job):
                    self._fetched(job.client, partial(_told, job, fetched))

    def _is_offered(self, job: Fetch) -> bool:
        offer = self._offers.get(job.client)
        return offer is not None and offer.update == job.ref

    def _fetched(self, client: str, check: Callable[[Expected], _Checked]) -> None:
        """Judge an update that is whole, as ``check`` says; it raises FrameError."""
        offer, current, device = self._offers.get(client), self.round, self._registry.get(client)
        if offer is None or current is None or device is None:
            return
        try:
            checked = check(self._asked(current, device))
        except FrameError as error:
            self._judged[client] = Judged(offer.update.digest, error.code, str(error))
            current.parts[client].verdict = self._judge(client, offer, error.code, str(error))
            current.excuse(client, f"rejected: {error}")
            self._observer.device(client, "rejected")
            return
        updates, size = self._update_file, offer.update.size
        report = Report(
            checked.samples, checked.loss, size, updates.path, updates.offset(client), held=checked.held
        )
        self._accept(current, device, offer, report)

    def _asked(self, current: Round, device: Device) -> Expected:
        samples = device.profile.samples
        return expected_of(current, device.client, samples, layout=self._layout, recipe=self._recipe)

    @staticmethod
    def _checked(content: bytes, asked: Expected) -> _Checked:
        header = check_update(content, asked).header
        return _Checked(header.samples, header.loss)

    def _job(self, current: Round, device: Device, offer: Offer) -> Fetch:
        asked, updates = self._asked(current, device), self._update_file
        return Fetch(
            client=device.client,
            ref=offer.update,
            path=updates.path,
            offset=updates.offset(device.client),
            task=current.parts[device.client].task,
            version=asked.version,
            samples=asked.samples,
            max_change=asked.max_change,
            shared=asked.shared,
        )

    @property
    def _update_file(self) -> UpdateFile:
        assert self._updates is not None  # nothing is fetched before the first round
        return self._updates

    def _place(self, client: str, ref: Ref) -> Place:
        return self._update_file.place(client, ref.size)

    def _accept(self, current: Round, device: Device, offer: Offer, report: Report) -> None:
        current.report(device.client, report)
        part = current.parts[device.client]
        if part.asked_at is not None:
            part.seconds = time.monotonic() - part.asked_at
        device.accepted, device.digest = offer.round, offer.update.digest
        self._judged[device.client] = Judged(
            device.digest,
            samples=report.samples,
            loss=report.loss,
            offset=report.offset,
            size=report.size,
            trained=offer.round,
        )
        part.verdict = self._judge(device.client, offer)
        self._observer.device(device.client, "accepted")

    def _judge(self, client: str, offer: Offer, code: str = "", reason: str = "") -> Verdict:
        verdict = Verdict(
            offer.run,
            offer.round,
            offer.update.digest,
            accepted=not code,
            code=code,
            reason=printable(reason, LONGEST_REASON),
        )
        if code:
            self._reject(client, code, reason)
        self._verdicts.append((client, verdict))
        return verdict


def _told(job: Fetch, fetched: Fetched, asked: Expected) -> _Checked:
    """What a worker found of an update; raises FrameError where it is refused, or what is told of it cannot be."""
    if fetched.code:
        raise FrameError(fetched.code, fetched.reason)
    if job.task.round != asked.round:  # the client was asked anew meanwhile
        raise FrameError("stale", f"The update is for round {job.task.round} of run '{job.task.run}'.")
    if fetched.held is not None:
        check_told(fetched.held, asked)
    return _Checked(fetched.samples, fetched.loss, fetched.held)
