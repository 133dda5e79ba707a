"""Control messages in both directions, and topics."""

from pathlib import Path
from zlib import crc32

from edge_fl.core.errors import FrameError
from edge_fl.wire.messages import Topics, decode_from_device, decode_to_device, encode_message
from fuzz.target import Prepared

__all__ = ["message", "topic"]

_VECTORS = Path(__file__).parents[2] / "tests" / "vectors" / "messages"
_CRC = 4


def message(name: str) -> Prepared:
    """The message ``name``, as either end reads it; its checksum always fits, so that the rest is reached."""

    def run(data: bytes) -> None:
        sealed = crc32(data).to_bytes(_CRC, "little") + data
        for decode in (decode_from_device, decode_to_device):
            try:
                found = decode(sealed)
            except FrameError:
                continue
            once = encode_message(found)
            assert encode_message(decode(once)) == once, "a message is another once it was read"

    return Prepared(run, [(_VECTORS / f"{name}.bin").read_bytes()[_CRC:]])


def topic() -> Prepared:
    """A topic of a message that arrived."""
    topics = Topics()
    digest = "0" * 64

    def run(data: bytes) -> None:
        try:
            direction, client, chunk = topics.parse(data.decode(errors="replace"))
        except FrameError:
            return
        assert direction in ("all", "up", "down")
        assert (direction == "all") == (not client)
        assert chunk is None or 0 <= chunk[1] < 10**9

    seeds = [topics.all, topics.up("a"), topics.down("a"), topics.chunk(topics.up("a"), digest, 7)]
    return Prepared(run, [seed.encode() for seed in seeds])
