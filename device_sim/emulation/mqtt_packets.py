"""MQTT 3.1.1 packets as far as a link between a client and a broker can see them: where they end, and publishes."""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Publish", "Splitter", "puback", "publish_of"]

_PUBLISH, _PUBACK = 3, 4
_LONGEST_LENGTH = 4  # bytes of a packet's remaining length


@dataclass(frozen=True)
class Publish:
    """A PUBLISH packet at QoS 1: its packet identifier, and where in it the payload begins."""

    identifier: int
    payload: int


class Splitter:
    """Cuts a stream of bytes into packets."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Every packet that is whole with ``data``; raises ValueError on what is no MQTT."""
        self._held += data
        while (end := _end(self._held)) is not None and end <= len(self._held):
            yield bytes(self._held[:end])
            del self._held[:end]


def publish_of(packet: bytes) -> Publish | None:
    """What a link must know of a PUBLISH at QoS 1; None for any other packet."""
    if packet[0] >> 4 != _PUBLISH or (packet[0] >> 1) & 3 != 1:
        return None
    start = next(i for i in range(1, len(packet)) if not packet[i] & 0x80) + 1
    topic_end = start + 2 + int.from_bytes(packet[start : start + 2], "big")
    return Publish(int.from_bytes(packet[topic_end : topic_end + 2], "big"), topic_end + 2)


def puback(identifier: int) -> bytes:
    """The PUBACK of a packet identifier."""
    return bytes([_PUBACK << 4, 2]) + identifier.to_bytes(2, "big")


def _end(held: bytearray) -> int | None:
    """Where the first packet ends; None while its length is not there."""
    length = 0
    for i in range(1, min(len(held), 1 + _LONGEST_LENGTH)):
        length |= (held[i] & 0x7F) << (7 * (i - 1))
        if not held[i] & 0x80:
            return i + 1 + length
    if len(held) > _LONGEST_LENGTH:
        raise ValueError("the length of an MQTT packet has at most 4 bytes")
    return None
