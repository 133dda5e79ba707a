"""Three sections behind a prelude: what frames of updates and of sums have in common (docs/protocol.md, section 2).

All little-endian, each section starting at a multiple of 8::

    0  magic    4  version u8    5  reserved, zero    8  header bytes u32    12  mask bytes u32
    16 value bytes u64    24 CRC-32 of everything but these four bytes u32    28 reserved, zero
    32 header (msgpack)    mask section    value section
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import FrameError

__all__ = ["VERSION", "Sections", "open_frame", "sealed_frame"]

VERSION = 1
_PRELUDE = struct.Struct("<4sB3sIIQI4s")
_CHECKSUM = slice(24, 28)
_ALIGN = 8


class Sections(NamedTuple):
    """The bytes of each section."""

    head: memoryview
    mask: memoryview
    values: memoryview


def sealed_frame(magic: bytes, head: bytes, mask: bytes, values: Sequence[bytes | NDArray[Any]]) -> bytes:
    """The frame whose value section has these bytes and C-contiguous little-endian arrays, one behind another."""
    parts = [part if isinstance(part, bytes) else part.reshape(-1).view(np.uint8).data for part in values]
    mask_at = _aligned(_PRELUDE.size + len(head))
    start = bytearray(_aligned(mask_at + len(mask)))
    size = sum(map(len, parts))
    _PRELUDE.pack_into(start, 0, magic, VERSION, bytes(3), len(head), len(mask), size, 0, bytes(4))
    start[_PRELUDE.size : _PRELUDE.size + len(head)] = head
    start[mask_at : mask_at + len(mask)] = mask
    checksum = _checksum(memoryview(start))
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    struct.pack_into("<I", start, _CHECKSUM.start, checksum)
    return b"".join([start, *parts])


def open_frame(view: memoryview, magic: bytes, *, checked: bool = True) -> Sections:
    """The sections of a frame; FrameError ``truncated``, ``magic``, ``version`` or, if ``checked``, ``checksum``."""
    if len(view) < _PRELUDE.size:
        raise FrameError("truncated", f"The frame has {len(view)} bytes, fewer than its own prelude.")
    found, version, _, head_size, mask_size, value_size, checksum, _ = _PRELUDE.unpack_from(view)
    if found != magic:
        raise FrameError("magic", "These bytes are no edge-fl frame.")
    if version != VERSION:
        raise FrameError("version", f"The frame has version {version}; this edge-fl reads version {VERSION}.")
    mask_at = _aligned(_PRELUDE.size + head_size)
    values_at = _aligned(mask_at + mask_size)
    if len(view) != values_at + value_size:
        raise FrameError("truncated", f"The frame has {len(view)} bytes and announces {values_at + value_size}.")
    if checked and _checksum(view) != checksum:
        raise FrameError("checksum", "The frame's checksum does not match its bytes.")
    head = view[_PRELUDE.size : _PRELUDE.size + head_size]
    return Sections(head, view[mask_at : mask_at + mask_size], view[values_at:])


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


def _checksum(frame: memoryview) -> int:
    return zlib.crc32(frame[_CHECKSUM.stop :], zlib.crc32(frame[: _CHECKSUM.start]))
