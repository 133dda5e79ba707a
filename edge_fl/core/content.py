"""Bytes by what they are: a digest and a size, and the chunks in which they travel."""

import hashlib
import re
from typing import NamedTuple, Protocol

import msgspec

__all__ = ["CHUNK_SIZE", "LARGEST", "Missing", "Ref", "Wanted", "is_digest", "ref_of"]

CHUNK_SIZE = 256 * 1024
LARGEST = 1 << 32
"""The most bytes of one content. Who fetches one remembers each of its chunks, here 16,384 of them."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Whether ``text`` is 64 hex digits in lower case, as a SHA-256 is written here."""
    return _DIGEST.fullmatch(text) is not None


class Ref(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes by content: ``digest`` is the 64 hex digits of their SHA-256, ``size`` their number."""

    digest: str
    size: int

    def __post_init__(self) -> None:
        if not is_digest(self.digest) or not 0 <= self.size <= LARGEST:
            raise ValueError("a content reference needs 64 hex digits and a size of 0 to 2**32")

    @property
    def chunks(self) -> int:
        """How many chunks the bytes travel in."""
        return -(-self.size // CHUNK_SIZE)


class Wanted(Protocol):
    """Chunks of a content, by their index."""

    @property
    def digest(self) -> str:
        """The content's."""
        ...

    @property
    def chunks(self) -> tuple[int, ...]:
        """Which are to be sent."""
        ...


class Missing(NamedTuple):
    """The chunks that a receiver asks for now."""

    digest: str
    chunks: tuple[int, ...]


def ref_of(content: bytes) -> Ref:
    """The reference by which ``content`` is asked for and verified."""
    return Ref(hashlib.sha256(content).hexdigest(), len(content))
