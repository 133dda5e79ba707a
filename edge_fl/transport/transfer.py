"""Content transfer in chunks, driven by the receiver (docs/protocol.md, section 5).

The receiver names at most ``WINDOW`` missing chunks at a time and asks again for what does not come. A sender remembers
only what is still on its way out, so either end may vanish, and what has arrived is never sent twice but by accident.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edge_fl.core.content import CHUNK_SIZE, Missing, Ref, Wanted
from edge_fl.core.errors import FrameError

__all__ = ["WINDOW", "Fetcher", "Parts", "Sender", "chunks_of", "cut"]

WINDOW = 20
_LEAVING = (
    64  # chunks handed to the connection and not acknowledged yet: more would only wait there, before messages
)
STALL_SECONDS = 2.0
_STALL_LIMIT = 30.0
_GAPS = 3  # a chunk that takes so many times as long as the one before is lost


def cut(content: bytes) -> tuple[bytes, ...]:
    """The chunks in which ``content`` travels."""
    return tuple(content[start : start + CHUNK_SIZE] for start in range(0, len(content), CHUNK_SIZE))


def chunks_of(chunks: Sequence[bytes], want: Wanted) -> list[tuple[int, bytes]]:
    """Those of a content's ``chunks`` that ``want`` asks for, by index; those beyond the content are left out."""
    return [(i, chunks[i]) for i in want.chunks[:WINDOW] if 0 <= i < len(chunks)]


class Sender:
    """Publishes the chunks that receivers want, each once until it has left, and only so many at a time.

    A receiver on a slow link asks again for chunks that still wait behind others; without this they would pile up. What
    waits are references to a content's chunks, however many receivers want them.

    Parameters
    ----------
    publish
        Sends a payload to a topic and returns what tells whether it has left.
    topic
        The topic of a chunk, from a side (a device's topic), a digest and an index.
    """

    def __init__(
        self, publish: Callable[[str, bytes], Callable[[], bool]], topic: Callable[[str, str, int], str]
    ) -> None:
        self._publish, self._topic = publish, topic
        self._line: dict[str, bytes] = {}
        self._leaving: dict[str, Callable[[], bool]] = {}

    @property
    def waiting(self) -> bool:
        """Whether chunks wait for :meth:`advance`."""
        return bool(self._line)

    def serve(self, side: str, chunks: Sequence[bytes], want: Wanted) -> int:
        """Send what ``want`` asks of a content, cut into ``chunks``, to ``side``; returns the bytes to be sent."""
        sent = 0
        for index, chunk in chunks_of(chunks, want):
            topic = self._topic(side, want.digest, index)
            left = self._leaving.get(topic)
            if topic not in self._line and (left is None or left()):
                self._line[topic] = chunk
                sent += len(chunk)
        self.advance()
        return sent

    def advance(self) -> None:
        """Publish what waits, as far as what was published before has left."""
        while self._leaving and next(iter(self._leaving.values()))():
            del self._leaving[next(iter(self._leaving))]
        while self._line and len(self._leaving) < _LEAVING:
            topic = next(iter(self._line))
            # Once more, and it leaves last: what has left is only looked for at the front.
            self._leaving.pop(topic, None)
            self._leaving[topic] = self._publish(topic, self._line.pop(topic))


@dataclass
class _Inbound:
    """One content on its way in.

    ``parts`` are the chunks that are here, ``asked`` those wanted and not here yet; ``flows`` is whether any has come
    since it was begun, or the connection was; ``heard`` is when the last chunk came; ``damaged`` is how often the
    whole was not what it should be.
    """

    ref: Ref
    missing: set[int]
    parts: "Parts"
    heard: float
    asked: set[int] = field(default_factory=set)
    progress: float = 0.0
    stall: float = STALL_SECONDS
    flows: bool = False
    damaged: int = 0


class Parts(Protocol):
    """Where the chunks of a content are until all have come."""

    def put(self, index: int, chunk: bytes) -> None:
        """Keep a chunk."""

    def whole(self) -> bytes | memoryview:
        """All of them, once they are there; those that come afterwards begin anew."""
        ...


class _InMemory:
    def __init__(self) -> None:
        self._chunks: dict[int, bytes] = {}

    def put(self, index: int, chunk: bytes) -> None:
        self._chunks[index] = chunk

    def whole(self) -> bytes:
        content = b"".join(chunk for _, chunk in sorted(self._chunks.items()))
        self._chunks.clear()
        return content


class Fetcher:
    """Everything one end is receiving from one peer.

    Parameters
    ----------
    send
        Asks the peer for chunks.
    window
        Chunks that are asked for at a time, at most ``WINDOW``.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        send: Callable[[Missing], None],
        *,
        window: int = WINDOW,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send, self._window, self._clock = send, window, clock
        self._inbound: dict[str, _Inbound] = {}

    def want(self, ref: Ref, parts: Parts | None = None) -> bytes | None:
        """Begin to fetch ``ref`` unless that is under way; empty content needs no fetching and is returned.

        ``parts`` is where its chunks go; in memory unless told otherwise.
        """
        if ref.size == 0:
            return b""
        if ref.digest not in self._inbound:
            place = _InMemory() if parts is None else parts
            self._inbound[ref.digest] = _Inbound(ref, set(range(ref.chunks)), place, heard=self._clock())
            self._ask(self._inbound[ref.digest])
        return None

    def silence(self, digest: str) -> float:
        """Seconds since a chunk of this content came, or it was begun; 0 where it is not being fetched."""
        inbound = self._inbound.get(digest)
        return 0.0 if inbound is None else self._clock() - inbound.heard

    def drop(self, digest: str) -> None:
        """Stop fetching a content that is no longer of use."""
        self._inbound.pop(digest, None)

    def chunk(self, digest: str, index: int, payload: bytes) -> bytes | memoryview | None:
        """Take a chunk in; returns the whole content once it is complete and its SHA-256 right.

        A chunk nobody waits for is ignored (duplicates and late chunks are normal).

        Raises
        ------
        FrameError
            ``chunk`` on a chunk of another size, ``digest`` when the whole does not hash to its name; what was
            received is then thrown away and asked for anew after a pause that grows each time.
        """
        inbound = self._inbound.get(digest)
        if inbound is None or index not in inbound.missing:
            return None
        if len(payload) != min(CHUNK_SIZE, inbound.ref.size - index * CHUNK_SIZE):
            raise FrameError("chunk", f"Chunk {index} of {digest[:12]} has {len(payload)} bytes, not its size.")
        inbound.parts.put(index, payload)
        inbound.missing.discard(index)
        inbound.asked.discard(index)
        if not inbound.flows and index > max(inbound.asked, default=index):
            inbound.asked.clear()  # messages keep their order: those before the first to come are lost
        now = inbound.heard = self._clock()
        inbound.stall = min(max(STALL_SECONDS, _GAPS * (now - inbound.progress)), _STALL_LIMIT)
        inbound.progress, inbound.flows = now, True
        if inbound.missing:
            if len(inbound.asked) <= self._window // 2 and inbound.missing - inbound.asked:
                self._ask(inbound)
            return None
        return self._finish(inbound)

    def tick(self) -> None:
        """Ask again for what has stalled, ever more patiently.

        Where nothing has come yet the link may just be slow: the last chunk tells, and is all that may travel twice.
        """
        now = self._clock()
        for inbound in self._inbound.values():
            if now - inbound.progress > inbound.stall:
                inbound.stall = min(2 * inbound.stall, _STALL_LIMIT)
                inbound.asked -= set(inbound.asked) if inbound.flows else {max(inbound.asked)}
                self._ask(inbound)

    def resume(self) -> None:
        """After a reconnect: ask at once for everything still missing."""
        for inbound in self._inbound.values():
            inbound.stall, inbound.flows = STALL_SECONDS, False
            inbound.asked.clear()
            self._ask(inbound)

    def _ask(self, inbound: _Inbound) -> None:
        fresh = tuple(i for i in sorted(inbound.missing)[: self._window] if i not in inbound.asked)
        inbound.asked.update(fresh)
        inbound.progress = self._clock()
        if fresh:
            self._send(Missing(inbound.ref.digest, fresh))

    def _finish(self, inbound: _Inbound) -> bytes | memoryview:
        content = inbound.parts.whole()
        if hashlib.sha256(content).hexdigest() == inbound.ref.digest:
            del self._inbound[inbound.ref.digest]
            return content
        inbound.missing = set(range(inbound.ref.chunks))
        inbound.damaged += 1
        inbound.stall = min(STALL_SECONDS * 2**inbound.damaged, _STALL_LIMIT)
        raise FrameError("digest", f"Content {inbound.ref.digest[:12]} arrived damaged and is fetched again.")
