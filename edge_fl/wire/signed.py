"""Control messages with a signature (docs/protocol.md, section 4.1): who says it, to whom, and when."""

import struct
from typing import Annotated

import msgspec

from edge_fl.core.errors import FrameError
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.wire.messages import checked_body, sealed_body

__all__ = [
    "LATEST",
    "MOST_SUCCESSORS",
    "Signed",
    "Successor",
    "decode_signed",
    "encode_signed",
    "is_signed",
    "to_sign",
]

LATEST = 2**53 - 1
"""The last moment that a message may name."""
MOST_SUCCESSORS = 16
"""The most changes of a coordinator's key that a message may name."""

_CONTEXT = b"edge-fl signed message 1\0"
_Moment = Annotated[int, msgspec.Meta(ge=0, le=LATEST)]
_Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
_Certificate = Annotated[bytes, msgspec.Meta(max_length=4096)]


class Successor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A coordinator's Ed25519 ``key``, and the ``signature`` under it of the key that the coordinator had before."""

    key: _Key
    signature: _Signature


class Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="signed"):
    """A message, signed by Ed25519.

    ``epoch`` is when the signer's process began, in milliseconds since 1970, or later than the last that it knows of.
    ``sequence`` grows with each message of an epoch and a topic. ``towards`` is the epoch of the coordinator that a
    device answers, 0 before it has heard one and in what a coordinator says. ``body`` is the message as
    :func:`edge_fl.wire.messages.encode_message` has it. A device that registers adds its X.509 ``certificate`` (DER),
    and a coordinator its ``successors``, the oldest first, when devices may not know its key.
    """

    epoch: _Moment
    sequence: _Moment
    towards: _Moment
    body: bytes
    signature: _Signature
    certificate: _Certificate = b""
    successors: Annotated[tuple[Successor, ...], msgspec.Meta(max_length=MOST_SUCCESSORS)] = ()


class _Tag(msgspec.Struct):
    type: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Signed)
_tags = msgspec.msgpack.Decoder(_Tag)


def to_sign(topic: str, signed: Signed) -> bytes:
    """What the signature of ``signed`` is of: everything in it, and the ``topic`` that it travels on."""
    name = topic.encode()
    moments = struct.pack("<QQQ", signed.epoch, signed.sequence, signed.towards)
    return b"".join((_CONTEXT, struct.pack("<H", len(name)), name, moments, signed.body))


def encode_signed(signed: Signed) -> bytes:
    """A signed message as it travels: a control message like any other."""
    return sealed_body(_encoder.encode(signed))


def decode_signed(data: bytes) -> Signed:
    """Read a signed message; raises FrameError (``unsigned``) on any other, and (``checksum``) on a damaged one."""
    try:
        return _decoder.decode(checked_body(data))
    except UNREADABLE as error:
        raise FrameError("unsigned", "The message carries no signature.") from error


def is_signed(data: bytes) -> bool:
    """Whether a message says that it is signed."""
    try:
        return _tags.decode(checked_body(data)).type == "signed"
    except (FrameError, *UNREADABLE):
        return False
