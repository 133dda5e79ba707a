"""The coordinator's side of the protocol: registers devices, gives out content, and takes in what they say.

It knows what a device may say and when; what a round is for is the coordinator's.
"""

import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from broker.allowance import Allowance
from broker.broker_log import is_broker_log, read_refusal
from broker.contents import Contents
from broker.envelope import BareEnvelope, Envelope
from broker.final_model import FinalModel
from broker.fleet import Counted
from broker.intake import Intake
from broker.model import GlobalModel
from broker.observer import Observer
from broker.poll import Poll
from broker.polling import Polling
from broker.presence import Presence
from broker.programs import missing_program
from broker.refusals import Refusals
from broker.registry import Registry
from broker.rounds import Round
from broker.run_folder import RunFolder
from broker.store import Store
from broker.tiers import Tiers
from broker.turned_away import TurnedAway
from broker.workers.pool import Said, Workers
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import Ref
from edge_fl.core.errors import EdgeFLError, FrameError, RunError, printable, said
from edge_fl.core.server_half import State
from edge_fl.recipes.recipe import Recipe
from edge_fl.transport.interface import Connected, Disconnected, Dropped, Event, Message, Posted, Transport
from edge_fl.transport.transfer import Sender
from edge_fl.wire.messages import (
    DECLINED,
    LONGEST_REASON,
    PROTOCOL,
    CollectedStatistics,
    Evaluated,
    Failed,
    Final,
    Finished,
    FromDevice,
    Gone,
    Hello,
    Keep,
    Keys,
    Offer,
    Refused,
    Register,
    Registered,
    Shares,
    Task,
    ToDevice,
    Topics,
    Unmasked,
    Want,
)

__all__ = ["Gateway"]

_log = logging.getLogger(__name__)
# How long a device may need to notice a coordinator that is back: every 30 s at least it tries a broker that was gone,
# and registers while it has nothing to do.
_RETURN_SECONDS = 35.0
_POLL_SECONDS, _SENDING_SECONDS = 0.2, 0.005  # the latter while chunks wait for others to leave
_NEWCOMER_SECONDS = 5.0  # in which a coordinator that is there already answers
_TICK_SECONDS, _REMIND_SECONDS = 0.25, 5.0
_REST_SECONDS = 30.0  # for which a device that declined is let be
_BURST = 64  # events taken at a time: looking at the round after each of thousands would take longer than they do
_LINGER_SECONDS = (1.0, 5.0, 300.0)  # in any case, for who is gone, and for who fetches the final model
_BUDGET = 8  # times all that can be fetched, which a client is sent in a round at the most
_SERVED_SECONDS = 5.0  # after a device asked for a part of it, in which it may ask for another
_HELLO_SECONDS = 5.0  # between two that devices make necessary: every device answers each
_CHANGE_COST = 50  # messages as which a changed registration counts, for it is recorded and logged
_MOST_OTHERS = 100  # runs of other coordinators that are remembered
_LONGEST_REASON = 500  # characters of what a device says, in a record and on a screen


class Gateway:
    """Everything devices hear and say.

    Parameters
    ----------
    bundle
        What devices fetch programs from.
    recipe
        Its method says how many units a device trains, and checks what it uploads.
    batch
        Samples a batch, which a static program must have been compiled for.
    most_devices
        Further ones are refused.
    tiers
        Says what devices measure, and when they are ready.
    folder
        Takes accepted updates.
    store
        Keeps what must outlive this process: devices, how updates were judged, what was turned away. The devices that
        it knows already have 35 seconds to be heard of before they count as gone.
    connection
        A session subscribed to :meth:`subscriptions`.
    topics
        The fleet's.
    observer
        Told of every device and rejection.
    envelope
        What messages travel in: bare, or signed.
    turned_away
        Whom the broker turned away, if it is the embedded one.
    workers
        Fetch and check updates; None where that happens here.

    Attributes
    ----------
    registry
        The devices known.
    sent
        Bytes of content published to each device since they were last asked for.
    polling
        The conversation about the newest poll.
    """

    outlives = True
    timed = True

    def __init__(
        self,
        *,
        bundle: Bundle,
        recipe: Recipe,
        batch: int,
        most_devices: int,
        tiers: Tiers,
        folder: RunFolder,
        store: Store,
        connection: Transport,
        topics: Topics,
        observer: Observer,
        envelope: Envelope | None = None,
        turned_away: TurnedAway | None = None,
        workers: Workers | None = None,
    ) -> None:
        known = store.devices()
        self.returning = time.monotonic() + _RETURN_SECONDS if known else -math.inf
        self.registry = Registry(known, self.returning, tiers.ready)
        self._refusals = Refusals(store, observer)
        self._allowance = Allowance(self.registry)
        self.sent: Counter[str] = Counter()
        self._bundle, self._recipe, self._batch, self._tiers = bundle, recipe, batch, tiers
        self._most_devices = most_devices
        self._folder, self._store, self._connection = folder, store, connection
        self._topics, self._observer = topics, observer
        self._presence = Presence(folder.root)
        self._contents = Contents(bundle)
        self._intake = Intake(
            bundle.layout,
            recipe,
            folder=folder,
            store=store,
            registry=self.registry,
            observer=observer,
            send=self._send,
            reject=self.reject,
            workers=workers,
        )
        self.polling = Polling(
            folder=folder, registry=self.registry, observer=observer, send=self._send, sent=self.sent
        )
        self._unheard: dict[str, float] = {}  # when those who have not been heard of since were sent their task
        self._sender = Sender(connection.publish, topics.chunk)
        self._ticked = 0.0  # monotonic seconds
        self._began = time.monotonic()
        self._envelope = envelope or BareEnvelope()
        self._turned_away = turned_away or TurnedAway()
        self._hello = Hello(folder.run, secrets.token_hex(8))
        self._owes_hello, self._hello_at = False, -math.inf  # the latter when the last one was said that was owed
        self._others = {self._hello}  # coordinators that were heard of on this fleet's topics
        self._over: Finished | None = None
        self._final: FinalModel | None = None
        self._served = -math.inf  # when a device asked for a part of it last

    @staticmethod
    def subscriptions(topics: Topics) -> list[str]:
        """The topic filters that the connection must be subscribed to."""
        return [topics.all, topics.up("+"), f"{topics.up('+')}/chunk/#"]

    def open_round(self, current: Round, model: bytes) -> Ref:
        """Take updates of ``current`` from now on, and give out its ``model`` frame.

        The models that clients were asked to train before it, and have not yet, can be had too.
        """
        self._intake.open_round(current)
        return self._contents.offer_model(model, {part.task.model.digest for part in current.parts.values()})

    def offer_model(self, model: bytes) -> Ref:
        """Give out this ``model`` frame and no other."""
        return self._contents.offer_model(model)

    def changes_for(self, client: str, model: GlobalModel) -> tuple[Ref, ...] | None:
        """Give out the changes, too, that lead to ``model`` from the one that the client trained last; None where
        models travel whole.
        """
        if not self._recipe.sends_changes:
            return None
        return self.offer_changes(model.changes_since(self.registry[client].accepted - 1) or ())

    def offer_changes(self, frames: Sequence[bytes]) -> tuple[Ref, ...]:
        """Give out the changes that lead to the round's model, too."""
        return tuple(self._contents.offer_change(frame) for frame in frames)

    def close_round(self) -> None:
        """Take no more updates: from now on an offer is late, and says nothing was lost that was accepted.

        Those of clients that are still awaited are gone on with once a round is opened again.
        """
        self._intake.close_round()

    def ask(self, tasks: Mapping[str, Task]) -> None:
        """Send each client its task, and again until it is heard of."""
        for client, task in tasks.items():
            self._observer.device(client, "training")
            self._say(client, task)

    def _say(self, client: str, task: Task) -> None:
        self._unheard.pop(client, None)
        self._unheard[client] = time.monotonic()
        self._send(client, task)

    def poll(self, current: Poll[Any, Any], *, deadline: float, gone_after: float) -> None:
        """Ask its clients and wait: ``deadline`` seconds at most, and not for who is gone for ``gone_after``."""
        self.polling.open(current)
        until = time.monotonic() + deadline
        while (now := time.monotonic()) < until and current.outstanding() - self.registry.lost(now, gone_after):
            self.pump()
        self.polling.close()

    def finish(self, rounds: int) -> None:
        """Tell all devices that the run is over, and every one that registers from now on; uploads are broken off."""
        self._over = Finished(self._folder.run, rounds)
        self._intake.finish()
        self._publish(self._topics.all, self._over)

    def farewell(self, rounds: int, final: FinalModel) -> None:
        """Tell the devices for a while, and longer if one is reconnecting just now, as it would wait for ever, or still
        fetches the ``final`` model.
        """
        self._final = final
        began, said = time.monotonic(), -math.inf
        shortest, longest, latest = (began + seconds for seconds in _LINGER_SECONDS)
        while (
            (now := time.monotonic()) < shortest
            or (now < longest and self.registry.lost(now, 0.0))
            or now < min(self._served + _SERVED_SECONDS, latest)
        ):
            if now - said >= _POLL_SECONDS:  # what it publishes to all it hears, too, and would never wait
                self.finish(rounds)
                said = now
            self.pump()
        self._refusals.tell()

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def counted(self) -> Counted:
        """Bytes and rejections since the last call."""
        counted = Counted(dict(self.sent), self._refusals.take())
        self.sent.clear()
        return counted

    @property
    def rejections(self) -> Counter[str]:
        """How many messages and updates were turned away, by code since :meth:`counted`."""
        return self._refusals.counted

    def reject(self, client: str, code: str, reason: str, times: int = 1, *, round: int | None = None) -> None:
        """Count what ``client`` sent in vain, so many ``times``; those that never registered count as one stranger.

        ``round`` is the one that it was for; None for the one that is under way.
        """
        poll = self.polling.current
        asking = self._intake.round or (None if poll is None or poll.closed else poll)
        number = round if round is not None else 0 if asking is None else asking.number
        known = client if self.registry.get(client) else ""  # strangers' names would fill the record
        self._refusals.add(number, known, code, reason, times)

    def recount(self, rejections: Mapping[str, int]) -> None:
        """Add those of a round that was broken off."""
        self._refusals.recount(rejections)

    def states(self) -> Mapping[str, State]:
        """None: devices keep their own."""
        return {}

    def state_dict(self) -> State:
        """Nothing: devices tell a coordinator that comes back."""
        return {}

    def pump(self, until: float = math.inf) -> None:
        """Take in what has come, waiting a little if nothing has, and keep transfers going."""
        del until  # it is looked at again before long
        event = self._connection.next(_SENDING_SECONDS if self._sender.waiting else _POLL_SECONDS)
        taken = 0
        while event is not None:
            self._handle(event)
            taken += 1
            event = self._connection.next(0.0) if taken < _BURST else None
        self._intake.settle()
        self._refusals.tell_in_time()
        self._sender.advance()
        now = time.monotonic()
        if now - self._ticked > _TICK_SECONDS:
            self._ticked = now
            self._intake.tick()
            self._count_at_door()
            self._remind(now - _REMIND_SECONDS)
            self._settle_hello()
            self._presence.write()

    def _count_at_door(self) -> None:
        for (client, code), (times, reason) in self._turned_away.take().items():
            self.reject(client, code, reason, times)

    def _handle(self, event: Event) -> None:
        match event:
            case Connected():
                self._publish(self._topics.all, self._hello)
                self._intake.resume()
                self.polling.resume()
            case Disconnected(reason=reason):
                _log.warning("connection to the broker lost (%s); reconnecting", reason)
            case Message(topic=topic, payload=payload) if is_broker_log(topic):
                if (refusal := read_refusal(payload)) is not None:
                    self.reject("", refusal.code, refusal.reason)
            case Message(topic=topic, payload=payload):
                self._take(topic, payload)
            case Posted(item=Said() as said):
                self._intake.heard(said)
            case Dropped(topic=topic, times=times):
                self.reject(topic.rpartition("/")[2], "flood", "More came than there is room for.", times)

    def _remind(self, overdue: float) -> None:
        """A lost task would cost the round its deadline, and so would a lost answer."""
        while self._unheard and next(iter(self._unheard.values())) < overdue:  # the oldest is first
            client = next(iter(self._unheard))
            del self._unheard[client]
            if (task := self._intake.task_of(client)) is not None:
                self._say(client, task)
        self.polling.tick(overdue)

    def _take(self, topic: str, payload: bytes) -> None:
        client = ""
        try:
            direction, client, chunk = self._topics.parse(topic)
            if direction == "all":
                self._hear_of_another(*self._envelope.overhear(topic, payload))
                return
            if chunk is None and not self._allowance.spend(client, time.monotonic()):
                raise FrameError("flood", "More messages came than a client may send.")
            if chunk is not None:
                self._presence_of(client)
                taker = self.polling.incoming or self._intake
                taker.chunk(client, *chunk, payload)
                return
            message = self._open(topic, client, payload)
            self._presence_of(client)
            if self.registry.heard(client):
                self._observer.registered(client, self.registry[client].profile)
            self._unheard.pop(client, None)
            self._hear(client, message)
        except FrameError as error:
            self.reject(client, error.code, str(error))
        except (EdgeFLError, OSError):  # of the run: its record or its disk fails
            raise
        except Exception as error:  # one bad message costs one message
            _log.exception("a message of '%s' could not be handled", client)
            self.reject(client, "fault", f"{type(error).__name__}: {said(error)}.")

    def _presence_of(self, client: str) -> None:
        if self.registry.get(client) is not None:
            self._presence.heard(client)

    def _open(self, topic: str, client: str, payload: bytes) -> FromDevice:
        """What a client says; where it hears later coordinators only, this one says Hello again, later than they."""
        epoch = self._envelope.epoch
        message = self._envelope.open(topic, client, payload)
        if self._envelope.epoch > epoch:
            self._owes_hello = True
            self._settle_hello()
        return message

    def _settle_hello(self) -> None:
        """Say Hello if it is owed, now and then: a device may claim ever later epochs."""
        now = time.monotonic()
        if self._owes_hello and now >= self._hello_at + _HELLO_SECONDS:
            self._owes_hello, self._hello_at = False, now
            self._publish(self._topics.all, self._hello)

    def _hear_of_another(self, message: ToDevice, older: bool) -> None:
        """End if another coordinator serves the fleet already; one that comes later is told so by a Hello, once.

        An ``older`` one is told, too, and ends nobody: what it says may have been recorded and sent again.
        """
        if not isinstance(message, Hello) or message in self._others or self._over is not None:
            return
        if (
            len(self._others) >= _MOST_OTHERS
        ):  # forged: who lets nobody in but whom it knows hears of no such number
            return
        self._others.add(message)
        if not older and time.monotonic() < self._began + _NEWCOMER_SECONDS:
            raise RunError(
                f"Another coordinator serves this fleet on this broker, with run '{message.run}': end it, or give this "
                "run a fleet of its own with --fleet."
            )
        _log.warning("another coordinator came, with run '%s', and should end: one fleet has one", message.run)
        self._publish(self._topics.all, self._hello)

    def _hear(self, client: str, message: FromDevice) -> None:
        match message:
            case Register():
                self._register(client, message)
            case Want():
                self._serve(client, message)
            case Offer(attempt=0):
                self._intake.consider(client, message)
            case Offer():
                self.polling.consider(client, message)
            case Evaluated() | CollectedStatistics() | Keys() | Shares() | Unmasked():
                self.polling.take(client, message)
            case Failed():
                self._take_failure(client, message)
            case Keep(run=run):
                self._deliver(client, run)
            case Gone() if self.registry.get(client) is not None:
                self.registry.gone(client, time.monotonic())
                self._presence.gone(client)
                self._observer.device(client, "gone")

    # --- registration and content

    def _register(self, client: str, profile: Register) -> None:
        refusal = self._refusal(client, profile)
        if refusal is not None:
            self.reject(client, *refusal)
            self._send(client, Refused(refusal[0], printable(refusal[1], LONGEST_REASON)))
            return
        if not (self._tiers.rehearsals and self._tiers.ready(profile)):  # nobody asked, or another run did
            profile = msgspec.structs.replace(profile, measured=None)
        known = self.registry.get(client)
        changed = known is None or known.profile != profile
        if known is not None and changed and not self._allowance.spend(client, time.monotonic(), _CHANGE_COST):
            raise FrameError("flood", "The device's registration changes more often than a client's may.")
        device = self.registry.register(client, profile)
        self._presence.heard(client)
        if changed:
            self._intake.settle()  # an update that the device's row speaks of is in the record before
            self._store.register(device)
            self._observer.registered(client, profile)
        self._send(client, Registered(self._folder.run, self._contents.manifest, self._tiers.rehearsals))
        if self._over is not None:
            self._send(client, self._over)
        if (task := self._intake.task_of(client)) is not None:
            self.ask({client: task})
        self.polling.registered(client)

    def _refusal(self, client: str, profile: Register) -> tuple[str, str] | None:
        if client not in self.registry and len(self.registry) >= self._most_devices:
            return "full", f"The run has {len(self.registry)} devices, and takes no more (serve --max-devices)."
        if profile.protocol != PROTOCOL:
            return "protocol", f"It speaks protocol {profile.protocol}, not {PROTOCOL}."
        if not profile.samples:
            return "profile", "It registers no samples."
        if reason := self._tiers.unfit(profile):
            return "profile", reason
        method, batch = self._recipe.method, self._batch
        reasons = [
            missing_program(self._bundle, profile.runtime, method, tier, batch)
            for tier in self._tiers.candidates(profile)
        ]
        return ("runtime", reasons[0] or "") if all(reasons) else None

    def _serve(self, client: str, want: Want) -> None:
        chunks = self._contents.get(want.digest)
        if chunks is None or self.registry.get(client) is None:
            raise FrameError("unknown-content", f"'{client}' wants {want.digest[:12]}, which is not given out.")
        if self.sent[client] > _BUDGET * self._contents.size:
            raise FrameError("budget", f"'{client}' fetched all there is {_BUDGET} times in this round.")
        self.sent[client] += self._sender.serve(self._topics.down(client), chunks, want)
        if self._final is not None:
            self._served = time.monotonic()

    def _deliver(self, client: str, run: str) -> None:
        """Give out the final model to a device that keeps it; one that asks too early asks again."""
        device = self.registry.get(client)
        if run != self._folder.run or device is None:
            raise FrameError("late", f"No model of run '{run}' is given out to the client.")
        if self._final is not None:
            frame, width, statistics = self._final.of(client, device.profile)
            self._served = time.monotonic()
            self._send(client, Final(run, self._contents.offer_change(frame), width, statistics))

    # --- answers without an update

    def _take_failure(self, client: str, failed: Failed) -> None:
        current, reason = self._intake.round, printable(failed.reason, _LONGEST_REASON)
        word = "declined" if failed.code == DECLINED else "failed"
        late = FrameError("late", f"Nobody waits for what round {failed.round} of run '{failed.run}' came to.")
        if failed.run != self._folder.run:
            raise late
        if failed.what == "train":
            if current is None or client not in current.parts or failed.round != current.round_of(client):
                raise late
            if not current.awaits(client):  # it was said before
                return
            current.excuse(client, f"{word}: {reason}")
            if word == "declined":
                current.parts[client].rests_until = time.monotonic() + _REST_SECONDS
        elif not self.polling.fail(client, failed):
            return
        _log.warning("round %d: '%s' %s to %s: %s", failed.round, client, word, failed.what, reason)
        self._observer.device(client, word)

    # --- what goes out

    def _send(self, client: str, message: ToDevice) -> None:
        self._publish(self._topics.down(client), message)

    def _publish(self, topic: str, message: ToDevice) -> None:
        self._connection.publish(topic, self._envelope.seal(topic, message))
