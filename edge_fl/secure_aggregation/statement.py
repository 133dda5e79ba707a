"""What a device signs for the other members of its cohort: its keys, and what its update said."""

import hashlib
import struct
from dataclasses import dataclass
from typing import NamedTuple

from edge_fl.core.pattern import Pattern
from edge_fl.secure_aggregation.keys import Session

__all__ = ["PublicKeys", "Said", "statement_of"]

_CONTEXT = b"edge-fl secure aggregation 1\0"


@dataclass(frozen=True)
class Said:
    """What an update says although it withholds its values: its pattern's SHA-256 and its ``samples``."""

    pattern: bytes
    samples: int

    @classmethod
    def of(cls, pattern: Pattern, samples: int) -> "Said":
        """Of one update."""
        return cls(hashlib.sha256(pattern.mask.tobytes()).digest(), samples)


class PublicKeys(NamedTuple):
    """The public halves of a device's keys, and what commits to the seed of its own mask: 32 bytes each."""

    encryption: bytes
    masking: bytes
    commitment: bytes


def statement_of(session: Session, client: str, announced: Said, keys: PublicKeys) -> bytes:
    """The bytes whose signature other members check."""
    words = [session.context, client.encode(), announced.pattern, struct.pack("<Q", announced.samples), *keys]
    return _CONTEXT + b"".join(struct.pack("<H", len(word)) + word for word in words)
