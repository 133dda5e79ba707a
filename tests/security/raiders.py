"""Two admitted devices that keep to no rule: one says what no device may say, one sends updates that none may send.

``Raider`` is asked to train, says everything of its list while the round waits for it, and fails. Until then the round
stays open, so that ``Liar`` can have one wrong update after another refused.
"""

import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edge_fl.agent.envelope import SignedEnvelope
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.recipes.recipe import open_recipe
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Message
from edge_fl.transport.transfer import Sender, cut
from edge_fl.wire.frame import Header, encode_frame, largest_frame
from edge_fl.wire.messages import (
    PROTOCOL,
    CollectedStatistics,
    Evaluated,
    Failed,
    Finished,
    FromDevice,
    Hello,
    Keep,
    Keys,
    Offer,
    Register,
    Registered,
    Shares,
    Task,
    ToDevice,
    Topics,
    Unmasked,
    Verdict,
    Want,
    encode_message,
)
from edge_fl.wire.sections import sealed_frame
from edge_fl.wire.signed import decode_signed, encode_signed

TOPICS = Topics()
SAMPLES = 100
REASON = "\x1b[2J\x1b]0;owned\x07\r\nforged line of a log\x85\u2028"
EPOCHS, _REGISTRATIONS = 200, 1500
OUT_OF_RANGE, LATE = 16, 13
"""How many of :func:`out_of_range` there are, and of :func:`out_of_place` that come late."""


class _Rogue(threading.Thread):
    """Registers as a device does; what a subclass says then is its own affair.

    Attributes
    ----------
    fault
        What ended the thread too early.
    hellos
        How many the coordinator said to all.
    """

    def __init__(self, name: str, address: BrokerAddress, state: Path) -> None:
        super().__init__(daemon=True)
        self.client, self.up, down = name, TOPICS.up(name), TOPICS.down(name)
        assert address.access.signing is not None
        state.mkdir()
        self._envelope = SignedEnvelope(address.access.signing, state)
        self._connection = Connection(
            address=address, client_id=name, subscriptions=[TOPICS.all, down, f"{down}/chunk/#"]
        )
        self._sender = Sender(self._connection.publish, TOPICS.chunk)
        self._outgoing: dict[str, tuple[bytes, ...]] = {}
        self.fault: BaseException | None = None
        self.hellos = 0
        self._over = threading.Event()

    def run(self) -> None:
        try:
            self._connection.open(timeout=120)
            self._raid()
        except BaseException as error:
            self.fault = error

    def _raid(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self._over.set()
        self.join(30)
        self._connection.close()

    def say(self, message: FromDevice | dict[str, Any]) -> None:
        """Signed, whatever it is."""
        self.publish(self._envelope.seal(self.up, message))  # type: ignore[arg-type]

    def publish(self, payload: bytes, topic: str | None = None) -> None:
        left = self._connection.publish(topic or self.up, payload)
        while not left() and not self._over.is_set():
            time.sleep(0.001)

    def hear(self, seconds: float = 0.05) -> ToDevice | None:
        """One message to this device; chunks that are asked for are sent."""
        event = self._connection.next(seconds)
        self._sender.advance()
        if not isinstance(event, Message) or "/chunk/" in event.topic:
            return None
        try:
            message = self._envelope.open(event.topic, event.payload)
        except FrameError:
            return None
        self.hellos += isinstance(message, Hello)
        if isinstance(message, Want) and message.digest in self._outgoing:
            self._sender.serve(self.up, self._outgoing[message.digest], message)
        return message

    def join_run(self) -> tuple[Registered, Task]:
        """Speak as a stranger, and register, until a task comes."""
        registered, asked = None, 0.0
        while not self._over.is_set():
            if time.monotonic() > asked + 1:
                if registered is None:
                    self.say(Failed("run", 1, "1", "not registered"))
                self.say(register())
                asked = time.monotonic()
            match self.hear():
                case Registered() as registered:
                    pass
                case Task() as task if registered is not None:
                    return registered, task
        raise AssertionError("the run was over before any task came")

    def fail(self, task: Task) -> None:
        """Have no further round wait for this device."""
        said = 0.0
        while not self._over.is_set():
            if time.monotonic() > said + 0.5:
                self.say(Failed(task.run, task.round, "1", REASON))
                said = time.monotonic()
            match self.hear():
                case Task() as task:
                    said = 0.0
                case Finished():
                    return


def register(**changes: Any) -> Register:
    known = {"protocol": PROTOCOL, "agent": "rogue", "runtime": "onnx", "samples": SAMPLES}
    return Register(**(known | changes))


class Raider(_Rogue):
    """Says what no device may say, by the code under which it is to be counted.

    Parameters
    ----------
    contents
        Bytes of all files of the bundle by digest, which it fetches again and again.
    last
        What it waits for before it fails.
    """

    def __init__(
        self, address: BrokerAddress, state: Path, contents: dict[str, int], last: Callable[[], bool]
    ) -> None:
        super().__init__("raider", address, state)
        self._contents, self._last = contents, last

    def _raid(self) -> None:
        _, task = self.join_run()
        signer = self._envelope._signer
        for name, payload in self._not_believed(task, signer):
            self.publish(payload)
            assert name
        for message in [*out_of_range(task), *out_of_place(task)]:
            self.say(message)
        for topic in (f"{self.up}/chunk/zz/1", f"{self.up}/chunk/{'0' * 64}/-1", f"{TOPICS.root}/up/7/raider"):
            self.publish(b"x", topic)
        for index in (0, 999_999_999):
            self.publish(bytes(1000), TOPICS.chunk(self.up, "1" * 64, index))
        for _ in range(12):  # all that there is, each time
            for digest, size in self._contents.items():
                for first in range(0, Ref(digest, size).chunks, 20):
                    self.say(Want(digest, tuple(range(first, first + 20))))
            self._drain()
        for number in range(EPOCHS):  # the coordinator has to say a later one each time
            claimed = self._envelope._trust.epoch + 1 + 2 * number
            self.publish(signer.seal(self.up, Failed(task.run, 0, "1", "late"), towards=claimed))
        for number in range(_REGISTRATIONS):
            self.say(register(platform=str(number)))
        while not self._last() and not self._over.is_set():
            self._drain()
        self.fail(task)

    def _drain(self) -> None:
        """Take what came: what is wanted is sent only once what was sent before has left."""
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            self.hear(0.01)

    def _not_believed(self, task: Task, signer: Any) -> Iterator[tuple[str, bytes]]:
        late = Failed(task.run, 0, "1", "late")
        yield "unsigned", encode_message(late)
        sealed = self._envelope.seal(self.up, late)
        yield "once", sealed
        yield "replayed", sealed
        yield "checksum", bytes([sealed[0] ^ 1]) + sealed[1:]
        yield "checksum", bytes(3_000_000)
        yield "checksum", b""
        other = msgspec.structs.replace(decode_signed(sealed), body=encode_message(Failed(task.run, 1, "1", "x")))
        yield "signature", encode_signed(other)
        yield "stale", signer.seal(self.up, late, towards=1)
        yield "clock", signer.seal(self.up, late, towards=1 << 52)
        yield "certificate", signer.seal(self.up, register(), towards=signer.epoch, certificate=b"\x30\x03none")


def out_of_range(task: Task) -> Iterator[dict[str, Any]]:
    """As the wire has them, for no message class holds them: all of them ``message``."""
    asked = {"run": task.run, "round": task.round}
    known = {"type": "register", "protocol": PROTOCOL, "agent": "r", "runtime": "onnx", "samples": 9}
    yield known | {"tier": 2**63}
    yield known | {"tier": -(2**63)}
    yield known | {"samples": 2**31}
    yield known | {"platform": "x" * 1_000_000}
    yield known | {"measured": {"run": task.run, "step_seconds": [0.1] * 1000}}
    yield known | {"measured": {"run": task.run, "step_seconds": [float("nan")]}}
    yield {"type": "offer", "run": task.run, "round": 2**40, "update": {"digest": "0" * 64, "size": 1}}
    yield {"type": "offer", **asked, "update": {"digest": "0" * 64, "size": 2**62}}
    yield {"type": "offer", **asked, "update": {"digest": "../" * 20, "size": 1}}
    yield {"type": "offer", **asked, "run": "../../etc", "update": {"digest": "0" * 64, "size": 1}}
    yield {"type": "want", "digest": "0" * 64, "chunks": list(range(100_000))}
    yield {"type": "failed", **asked, "code": "1", "reason": "x" * 100_000}
    yield {"type": "shares", **asked, "attempt": 1, "sealed": {f"c{i}": bytes(80) for i in range(1000)}}
    yield {"type": "keys", **asked, "attempt": 1, **dict.fromkeys(("encryption", "masking", "commitment"), b"")}
    yield {"type": "task"}
    yield {"type": "hello", "run": task.run, "process": ""}


def out_of_place(task: Task) -> Iterator[FromDevice]:
    """What nobody asked for now, or of this device."""
    run, number, ref = task.run, task.round, Ref("3" * 64, 99)
    for changes in ({"protocol": PROTOCOL + 1}, {"samples": 0}, {"runtime": "none"}):
        yield register(**changes)
    yield Offer(run, number + 1, ref)
    yield Offer(run, 0, ref)
    yield Offer("another", number, ref)
    yield Offer(run, number, ref, attempt=1)
    yield Offer(run, number, Ref("3" * 64, 0))
    yield Offer(run, number, Ref("3" * 64, 1 << 32))
    yield Want("2" * 64, (0,))
    yield Evaluated(run, number, 1, 0.0)
    yield CollectedStatistics(run, number, bytes(1_000_000))
    yield Keys(run, number, 1, bytes(32), bytes(32), bytes(32))
    yield Shares(run, number, 1, {"tea": bytes(80)})
    yield Unmasked(run, number, 1, {"tea": bytes(32)})
    yield Failed("another", number, "1", REASON)
    yield Failed(run, number + 1, "1", REASON)
    yield Failed(run, number, "1", REASON, "evaluate")
    yield Keep("another")


SAID = {
    *("unregistered", "unsigned", "replayed", "checksum", "signature", "stale", "clock", "certificate", "message"),
    *("topic", "protocol", "profile", "runtime", "late", "truncated", "oversize", "unknown-content", "budget"),
    "flood",
}
"""The codes of all that :class:`Raider` says."""


@dataclass
class Liar(_Rogue):
    """Offers one wrong update after another. ``refused`` are the codes that it was told, by what it sent."""

    address: BrokerAddress
    state: Path
    layout: Layout
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _Rogue.__init__(self, "liar", self.address, self.state)

    __hash__ = threading.Thread.__hash__

    @property
    def done(self) -> bool:
        return self.fault is not None or len(self.refused) == len(WRONG)

    def _raid(self) -> None:
        _, task = self.join_run()
        for name, (_, make) in WRONG.items():
            content = make(self._header(task), self.layout)
            self._outgoing = {ref_of(content).digest: cut(content)}
            self.refused[name] = self._offer(task, ref_of(content))
        self.fail(task)

    def _header(self, task: Task) -> Header:
        return Header(
            kind="update",
            run=task.run,
            round=task.round,
            version=task.round - 1,
            layout="",
            method=task.method,
            mode=open_recipe(task.method, task.parameters).method.mode,
            client="liar",
            samples=1,
        )

    def _offer(self, task: Task, ref: Ref) -> str:
        said = 0.0
        while not self._over.is_set():
            if time.monotonic() > said + 2:
                self.say(Offer(task.run, task.round, ref))
                said = time.monotonic()
            heard = self.hear()
            if isinstance(heard, Verdict) and heard.digest == ref.digest:
                return heard.code if not heard.accepted else "accepted"
        raise AssertionError("the run was over before an update was judged")


def _update(header: Header, layout: Layout, value: float = 0.0, **changes: Any) -> bytes:
    arrays = {tensor.name: np.full(tensor.shape, value, np.float32) for tensor in layout.tensors}
    return encode_frame(msgspec.structs.replace(header, **changes), Pattern.full(layout), arrays)


def _with_mask(header: Header, layout: Layout, encoding: str, mask: bytes) -> bytes:
    """A frame with another mask section, whose checksum holds."""
    head = msgspec.msgpack.encode(msgspec.structs.replace(header, layout=layout.digest, mask=encoding))
    return sealed_frame(b"EFLF", head, mask, [bytes(8)])


def _sealed_again(frame: bytearray) -> bytes:
    """A frame that was changed, with a checksum that holds."""
    struct.pack_into("<I", frame, 24, zlib.crc32(frame[28:], zlib.crc32(frame[:24])))
    return bytes(frame)


def _claims(header: Header, layout: Layout, at: int, size: int) -> bytes:
    """A frame that says of one of its sections that it is huge."""
    frame = bytearray(_update(header, layout))
    struct.pack_into("<I", frame, at, size)
    return _sealed_again(frame)


def _with_layout(header: Header, layout: Layout) -> bytes:
    frame = bytearray(_update(header, layout))
    at = frame.index(layout.digest.encode())
    frame[at : at + 4] = b"0000" if frame[at : at + 4] != b"0000" else b"1111"
    return _sealed_again(frame)


Make = Callable[[Header, Layout], bytes]
WRONG: dict[str, tuple[str, Make]] = {
    "of a later round": ("stale", lambda h, y: _update(h, y, round=h.round + 1)),
    "of another run": ("stale", lambda h, y: _update(h, y, run="another")),
    "of an earlier model": ("stale", lambda h, y: _update(h, y, version=h.version + 7)),
    "in another's name": ("foreign", lambda h, y: _update(h, y, client="tea")),
    "a model": ("kind", lambda h, y: _update(h, y, kind="model")),
    "by another method": ("method", lambda h, y: _update(h, y, method="fedbiad")),
    "of more samples": ("samples", lambda h, y: _update(h, y, samples=2**31 - 1)),
    "of a huge loss": ("loss", lambda h, y: _update(h, y, loss=1e300)),
    "without end": ("not-finite", lambda h, y: _update(h, y, value=float("inf"))),
    "huge": ("diverged", lambda h, y: _update(h, y, value=1e30)),
    "damaged": ("checksum", lambda h, y: _update(h, y)[:-1] + b"\xff"),
    "no frame": ("magic", lambda _h, _y: bytes(10_000)),
    "cut": ("truncated", lambda h, y: _update(h, y)[:20]),
    "of another layout": ("layout", _with_layout),
    "a short mask": ("mask", lambda h, y: _with_mask(h, y, "bitmask", b"\xff")),
    "a long mask": ("mask", lambda h, y: _with_mask(h, y, "bitmask", bytes(50_000))),
    "a mask of all widths": ("mask", lambda h, y: _with_mask(h, y, "prefix", b"\xff\xff")),
    "a mask of any rate": ("mask", lambda h, y: _with_mask(h, y, "seed", b"\xff" * 10)),
    "a mask of 4 GB": ("truncated", lambda h, y: _claims(h, y, 12, 2**32 - 1)),
    "a header of 4 GB": ("truncated", lambda h, y: _claims(h, y, 8, 2**32 - 1)),
    "values without end": ("oversize", lambda _h, y: bytes(largest_frame(y) + 1)),
}
"""What :class:`Liar` sends, the code that each is refused by, and how it is made."""
