"""A device's end of the conversation with its coordinator: what is wanted of it, and what it fetches and offers."""

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

from edge_fl.agent.envelope import Envelope
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.errors import EdgeFLError, FrameError, RefusedError
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.incoming_file import IncomingFile
from edge_fl.transport.interface import Connected, Disconnected, Message
from edge_fl.transport.transfer import Fetcher, Sender, cut
from edge_fl.wire.messages import (
    Answer,
    CollectStatistics,
    Evaluate,
    Failed,
    Final,
    Finished,
    FromDevice,
    Gone,
    Hello,
    Keep,
    MakeKeys,
    Offer,
    Refused,
    Register,
    Registered,
    Request,
    SendMasked,
    ShareKeys,
    Task,
    Topics,
    Unmask,
    Verdict,
    Want,
)

__all__ = ["Conversation", "Superseded"]

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5
_MANY_SHORT = 3  # sessions in a row: another device of this id takes them over
_REGISTER_SECONDS = (5.0, 30.0)  # pauses between two registrations, before the first answer and after
_OFFER_SECONDS = (2.0, 30.0)  # first and longest pause between two offers of one update
_LASTING = "protocol"  # the refusal that another run of this coordinator would repeat
_SILENCE_SECONDS = 120.0  # without a chunk of what is fetched, after which nobody seems to give it out
_UNANSWERED_SECONDS = 30.0  # after which the owner hears that nobody answers
_SILENT = "connected, and no coordinator answers '%s': start one, or see in its log why it turns this device away"
_MANY_UNHEARD = 3  # registrations in a row without an answer, by a device that had one before
_LOST = "the coordinator no longer answers '%s': see that it runs, and in its log why it turns this device away"
_STRANGE = (
    "connected, and what answers '%s' is no coordinator that its identity believes: the identity is another fleet's, "
    "damaged, or older than the coordinator's key; have a new one made"
)


class Superseded(Exception):  # noqa: N818  (not an error: something newer is wanted)
    """What the device was doing is no longer wanted."""


class Conversation:
    """What one device hears and says, over a session that heals itself.

    Parameters
    ----------
    broker
        Where to connect.
    client
        The device's id.
    fleet
        Whose topics these are.
    introduce
        What the device says of itself, each time it registers.
    envelope
        What messages travel in: bare, or signed.
    once
        Whether it is for one run: one that does not want this device then ends it.

    Attributes
    ----------
    registered
        The run that the device is taken into; None until it is.
    task
        What is to be done now; None for nothing.
    finished
        The farewell of the run, once it is over.
    """

    def __init__(
        self,
        broker: BrokerAddress,
        client: str,
        fleet: str,
        introduce: Callable[[], Register],
        *,
        envelope: Envelope,
        once: bool,
    ) -> None:
        self.registered: Registered | None = None
        self.task: Task | Request | None = None
        self.finished: Finished | None = None
        self._final: Final | None = None
        self._broker, self._client, self._introduce = broker, client, introduce
        self._envelope, self._once = envelope, once
        self._refused = ""  # why the last run did not want this device; nothing once one does
        topics = Topics(fleet)
        self._topics, self._up, down = topics, topics.up(client), topics.down(client)
        self._connection = Connection(
            address=broker,
            client_id=client,
            subscriptions=[topics.all, down, f"{down}/chunk/#"],
            will=(self._up, envelope.seal(self._up, Gone())),
        )
        self._fetcher = Fetcher(lambda missing: self.send(Want(*missing)))
        self._sender = Sender(self._connection.publish, topics.chunk)
        self._arrived: dict[str, bytes | memoryview] = {}
        self._outgoing: dict[str, tuple[bytes, ...]] = {}
        self._newest = ("", 0)  # run and round of the newest task heard of
        # The last answer, which may have been lost.
        self._answered: tuple[Request, Answer | Failed] | None = None
        self._verdict: Verdict | None = None
        self._asked = 0.0  # when it last registered, in monotonic seconds
        self._unheard = 0  # registrations since the last answer
        self._unanswered: float | None = None  # since when it has, without an answer
        self._disbelieved = False  # whether messages came since then whose signer it does not believe
        self._next_offer = 0.0  # monotonic seconds; a reconnect makes it now

    def open(self, timeout: float) -> None:
        """Connect within ``timeout`` seconds; raises BrokerError when no broker answers."""
        self._connection.open(timeout=timeout)

    def leave(self) -> None:
        """Tell the coordinator that this device goes, in a second at most: a session that is closed leaves no will."""
        left, until = self._publish(Gone()), time.monotonic() + 1
        while not left() and time.monotonic() < until:
            time.sleep(0.01)

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    def listen(self) -> None:
        """Take one event in, if one comes; register again now and then, as anything said before may have been lost.

        Raises
        ------
        RefusedError
            When the coordinator does not want this device, and the next one would not either, or is not waited for.
        """
        self._pump()
        unheard = self.registered is None and not self._refused
        now, pause = time.monotonic(), _REGISTER_SECONDS[0 if unheard else 1]
        if now - self._asked > pause:
            if self.registered is not None and self.finished is None and self._unheard == _MANY_UNHEARD:
                _log.warning(_LOST, self._client)
            self.register()
        if unheard:
            self._unanswered = now if self._unanswered is None else self._unanswered
            if now - self._unanswered > _UNANSWERED_SECONDS:
                self._unanswered = math.inf  # once
                _log.warning(_STRANGE if self._disbelieved else _SILENT, self._client)

    # --- what the device says

    def register(self) -> None:
        """Say what the device is."""
        self._asked = time.monotonic()
        self._unheard += 1
        self.send(self._introduce())

    def send(self, message: FromDevice) -> None:
        """Publish a message, which may be lost."""
        self._publish(message)

    def _publish(self, message: FromDevice) -> Callable[[], bool]:
        return self._connection.publish(self._up, self._envelope.seal(self._up, message))

    def answer(self, task: Request, answer: Answer | Failed) -> None:
        """Say what was found; a coordinator that asks again, as it has not heard it, is told again."""
        self._answered = task, answer
        self.send(answer)

    def fetch(self, ref: Ref, *, largest: int, wanted: Callable[[], bool]) -> bytes:
        """Wait for content of at most ``largest`` bytes.

        Raises
        ------
        FrameError
            When more is announced.
        RefusedError
            As :meth:`listen`.
        Superseded
            Once it is no longer ``wanted``, or no chunk of it has come for two minutes: then whoever announced it may
            not have been the coordinator, and the device registers anew.
        """
        return bytes(self._fetched(ref, None, largest=largest, wanted=wanted))

    def fetch_into(self, path: Path, ref: Ref, *, largest: int, wanted: Callable[[], bool]) -> None:
        """The same into a file, without taking its bytes into memory; raises StateError when it cannot be written."""
        parts = IncomingFile(path, ref.size)
        try:
            self._fetched(ref, parts, largest=largest, wanted=wanted)
            parts.settle()
        except BaseException:
            self._fetcher.drop(ref.digest)
            parts.drop()
            raise

    def _fetched(
        self, ref: Ref, parts: IncomingFile | None, *, largest: int, wanted: Callable[[], bool]
    ) -> bytes | memoryview:
        if ref.size > largest:
            raise FrameError("oversize", f"The coordinator announces {ref.size} bytes where {largest} can be.")
        content: bytes | memoryview | None = self._fetcher.want(ref, parts)
        while content is None:
            if not wanted():
                self._fetcher.drop(ref.digest)
                raise Superseded
            if self._fetcher.silence(ref.digest) > _SILENCE_SECONDS:
                _log.warning("nobody gives out %s; registering anew", ref.digest[:12])
                self._fetcher.drop(ref.digest)
                self._forget()
                raise Superseded
            self._pump()
            content = self._arrived.pop(ref.digest, None)
        return content

    def _forget(self) -> None:
        """Believe nothing of what was heard: neither the run nor how far it is."""
        self.registered = self.task = None
        self._newest, self._asked = ("", 0), -math.inf

    def final(self, finished: Finished, patience: float) -> Final:
        """Ask for the final model of a run that is over, again and again for ``patience`` seconds.

        Raises
        ------
        RefusedError
            As :meth:`listen`.
        Superseded
            When no answer came, or another run begins.
        """
        self._final, until, asked = None, time.monotonic() + patience, -math.inf
        while (found := self._final_model()) is None:
            now = time.monotonic()
            if now > until or self.finished != finished:
                raise Superseded
            if now > asked + _OFFER_SECONDS[0]:
                self.send(Keep(finished.run))
                asked = now
            self._pump()
        return found

    def _final_model(self) -> Final | None:
        return self._final

    def upload(self, task: Task | SendMasked, content: bytes) -> Verdict:
        """Offer an update, or a masked one, until the coordinator says what became of it.

        Raises
        ------
        RefusedError
            As :meth:`listen`.
        Superseded
            Once ``task`` is no longer the one to be done.
        """
        ref, attempt = ref_of(content), task.attempt if isinstance(task, SendMasked) else 0
        self._outgoing, self._verdict = {ref.digest: cut(content)}, None
        pause, self._next_offer = _OFFER_SECONDS[0], 0.0
        while (verdict := self._verdict_on(ref)) is None:
            if self.task is not task:
                raise Superseded
            if time.monotonic() >= self._next_offer:
                self.send(Offer(task.run, task.round, ref, attempt))
                self._next_offer, pause = time.monotonic() + pause, min(2 * pause, _OFFER_SECONDS[1])
            self._pump()
        self._outgoing = {}
        if not verdict.accepted:
            self._newest = ("", 0)  # a task of a round that was never asked would keep all others out
        return verdict

    def _verdict_on(self, ref: Ref) -> Verdict | None:
        verdict = self._verdict
        return verdict if verdict is not None and verdict.digest == ref.digest else None

    # --- what it hears

    def _pump(self) -> None:
        """Take one event in, if one comes, and keep transfers going."""
        match self._connection.next(_POLL_SECONDS):
            case Connected():
                _log.info("connected to %s as '%s'", self._broker, self._client)
                self._envelope.begin()
                self.register()
                self._fetcher.resume()
                self._next_offer = 0.0
            case Disconnected(reason=reason, short=short):
                self._lost_connection(reason, short)
            case Message(topic=topic, payload=payload):
                try:
                    self._take(topic, payload)
                except FrameError as error:
                    self._disbelieved |= error.code == "signature"
                    _log.warning("ignored a message: %s", error)
                except EdgeFLError:
                    raise
                except Exception:  # one bad message costs one message
                    _log.exception("ignored a message that could not be handled")
        self._fetcher.tick()
        self._sender.advance()

    def _lost_connection(self, reason: str, short: int) -> None:
        if self.finished is None:
            _log.warning("connection lost (%s); reconnecting", reason)
        else:  # its broker may have ended with the run
            _log.info("connection lost after the run (%s): waiting for the next", reason)
        if short == _MANY_SHORT:
            _log.warning(
                "the broker keeps ending this session: does another device use the id '%s'? Enrol one of them under "
                "another name, or, without identities, give each its own --id",
                self._client,
            )

    def _take(self, topic: str, payload: bytes) -> None:
        _, _, chunk = self._topics.parse(topic)
        if chunk is not None:
            content = self._fetcher.chunk(*chunk, payload)
            if content is not None:
                self._arrived[chunk[0]] = content
            return
        match self._envelope.open(topic, payload):
            case Hello():
                self.register()
            case Registered() as message:
                self.registered, self.finished, self._unanswered, self._unheard = message, None, None, 0
                self._disbelieved, self._refused = False, ""
                if (
                    self.task is not None and self.task.run != message.run
                ):  # which may be fetched for minutes, in vain
                    self.task = None
            case Refused() as message:
                self._stand_aside(message)
            case (
                Task() | Evaluate() | CollectStatistics() | MakeKeys() | ShareKeys() | SendMasked() | Unmask()
            ) as message if self._is_mine(message.run):
                self._hear(message)
            case Want() as message:
                self._serve(message)
            case Verdict() as message:
                self._verdict = message
            case Finished() as message if self._is_mine(message.run):
                if self.finished != message:
                    _log.info("run %s is over after %d rounds", message.run, message.rounds)
                self.finished, self.task = message, None
            case Final() as message if self._is_mine(message.run):
                self._final = message

    def _stand_aside(self, refused: Refused) -> None:
        """Wait for another run: one that was badly set, or has devices enough, is no reason to end."""
        told = f"The coordinator refused '{self._client}': {refused.reason}"
        if self._once or refused.code == _LASTING:
            raise RefusedError(told)
        if refused.reason != self._refused:
            _log.warning("%s This device waits for another run.", told)
        self.registered, self.task, self._refused = None, None, refused.reason
        self._unanswered, self._unheard = None, 0

    def _hear(self, task: Task | Request) -> None:
        """Take a task on, unless it is a repetition or was delayed; an answer that may be lost is given again."""
        if self._answered is not None and task == self._answered[0]:
            self.send(self._answered[1])
        elif task != self.task and (task.round >= self._newest[1] or task.run != self._newest[0]):
            self.task, self._newest = task, (task.run, task.round)

    def _is_mine(self, run: str) -> bool:
        """Whether a message is of the run this device is registered in; other coordinators may share the broker."""
        return self.registered is not None and self.registered.run == run

    def _serve(self, want: Want) -> None:
        chunks = self._outgoing.get(want.digest)
        if chunks is not None:
            self._sender.serve(self._topics.wanted(self._client, want), chunks, want)
