"""Small state machines of the transport."""

import hashlib
from contextlib import suppress

from edge_fl.core.content import CHUNK_SIZE, Missing, Ref, ref_of
from edge_fl.core.errors import FrameError
from edge_fl.transport.inbox import Inbox
from edge_fl.transport.interface import Dropped, Message
from edge_fl.transport.transfer import Fetcher
from fuzz.target import Draws, Exhausted, Prepared

__all__ = ["inbox", "transfer"]

_SEEDS = [bytes(range(64)), bytes(range(0, 256, 3)), bytes(100)]


def transfer() -> Prepared:
    """What one end receives of another: chunks in any order, of any size, late, twice, and of other contents."""
    sound = bytes(range(256)) * (CHUNK_SIZE // 256) + b"the rest"
    refs = [ref_of(sound), ref_of(b"short"), Ref("0" * 64, 5), Ref("1" * 64, 0)]
    chunks = [sound[:CHUNK_SIZE], sound[CHUNK_SIZE:], b"short", b"", b"other"]

    def run(data: bytes) -> None:
        draws, asked, now = Draws(data), list[Missing](), [0.0]
        fetcher = Fetcher(asked.append, clock=lambda: now[0])
        with suppress(Exhausted):
            while True:
                match draws.byte() % 6:
                    case 0:
                        fetcher.want(draws.pick(refs))
                    case 1:
                        fetcher.drop(draws.pick(refs).digest)
                    case 2:
                        now[0] += draws.byte()
                        fetcher.tick()
                    case 3:
                        fetcher.resume()
                    case _:
                        ref, index, chunk = draws.pick(refs), draws.number(), draws.pick(chunks)
                        with suppress(FrameError):
                            content = fetcher.chunk(ref.digest, index, chunk)
                            assert content is None or hashlib.sha256(content).hexdigest() == ref.digest
        assert all(len(missing.chunks) <= 20 for missing in asked)

    return Prepared(run, _SEEDS)


def inbox() -> Prepared:
    """A bounded queue: what is put is taken or told as dropped."""
    topics = [f"f/2/up/{name}{rest}" for name in "abc" for rest in ("", "/chunk/0/1")]
    payloads = [b"", b"x", bytes(1 << 20), bytes((1 << 20) + 1)]

    def run(data: bytes) -> None:
        draws, held, put, taken = Draws(data), Inbox(), 0, 0
        with suppress(Exhausted):
            while True:
                topic, payload, times = draws.pick(topics), draws.pick(payloads), draws.byte()
                for _ in range(times):
                    held.put_message(topic, payload)
                put += times
                for _ in range(draws.byte() % 4):
                    taken += _count(held.get(0.0))
        while event := held.get(0.0):
            taken += _count(event)
        taken += sum(held._dropped.values())  # told later: at most four times a second
        assert put == taken, "a message was lost and not told"

    return Prepared(run, _SEEDS)


def _count(event: object) -> int:
    return event.times if isinstance(event, Dropped) else 1 if isinstance(event, Message) else 0
