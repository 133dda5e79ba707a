"""Topics and messages of enrolment (docs/protocol.md, section 6.2): a device asks for a certificate.

They travel on the enrol listener's broker alone. A coordinator reads none of them.
"""

from typing import Annotated, Literal

import msgspec

from edge_fl.core.errors import FrameError
from edge_fl.core.unreadable import decoded
from edge_fl.wire.messages import PROTOCOL, checked_body, sealed_body

__all__ = [
    "LARGEST",
    "Enrol",
    "EnrolRefused",
    "EnrolTopics",
    "Enrolled",
    "Why",
    "decode_answer",
    "decode_enrol",
    "encode_enrol",
]

LARGEST = 8192
"""The most bytes of a message of enrolment."""

_Der = Annotated[bytes, msgspec.Meta(min_length=1, max_length=4096)]
_Hash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Why = Literal["expired", "used", "taken", "request", "unavailable"]


class Enrol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="enrol"):
    """A device asks for a certificate: ``request`` is a PKCS #10 request (DER) of its own Ed25519 key."""

    request: _Der


class Enrolled(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="enrolled"):
    """What the request with the SHA-256 ``request`` gets.

    ``certificate`` is X.509 in DER, ``coordinator`` the Ed25519 key that the device believes, and ``broker`` the
    address that it connects to.
    """

    request: _Hash
    certificate: _Der
    coordinator: _Hash
    broker: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


class EnrolRefused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="enrol_refused"):
    """Why the request with the SHA-256 ``request`` gets nothing."""

    request: _Hash
    why: Why


class EnrolTopics:
    """The topics of enrolment in a fleet: ``<fleet>/2/enrol/<token>/request`` and ``.../answer``."""

    def __init__(self, fleet: str = "edge-fl") -> None:
        self._root = f"{fleet}/{PROTOCOL}/enrol"

    def request(self, token: str) -> str:
        """Where the holder of a token asks (``+`` for all of them)."""
        return f"{self._root}/{token}/request"

    def answer(self, token: str) -> str:
        """Where the holder of a token is answered."""
        return f"{self._root}/{token}/answer"

    def writable(self, token: str) -> tuple[str, ...]:
        """The filters of what the holder of a token may publish."""
        return (self.request(token),)

    def readable(self, token: str) -> tuple[str, ...]:
        """The filters of what the holder of a token may subscribe to."""
        return (self.answer(token),)

    def token_of(self, topic: str) -> str:
        """Whose request came on ``topic``; raises FrameError (``topic``) on any other."""
        token = topic.removeprefix(f"{self._root}/").removesuffix("/request")
        if "/" in token or self.request(token) != topic:
            raise FrameError("topic", "No request to enrol comes there.")
        return token


_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Enrol)
_answers: msgspec.msgpack.Decoder[Enrolled | EnrolRefused] = msgspec.msgpack.Decoder(Enrolled | EnrolRefused)


def encode_enrol(message: Enrol | Enrolled | EnrolRefused) -> bytes:
    """A message as it travels: CRC-32 and msgpack, as control messages."""
    return sealed_body(_encoder.encode(message))


def decode_enrol(data: bytes) -> Enrol:
    """Read a device's request; raises FrameError (``checksum``, ``message``) on anything else."""
    return decoded(_requests, _bounded(data), what="request")


def decode_answer(data: bytes) -> Enrolled | EnrolRefused:
    """Read a listener's answer; raises FrameError (``checksum``, ``message``) on anything else."""
    return decoded(_answers, _bounded(data), what="answer")


def _bounded(data: bytes) -> bytes:
    if len(data) > LARGEST:
        raise FrameError("message", f"A message of enrolment has {LARGEST:,} bytes at the most.")
    return checked_body(data)
