"""Three sections behind a prelude: what frames of updates and of sums have in common (docs/protocol.md, section 2).

All little-endian, each section starting at a multiple of 8::

    0  magic    4  version u8    5  reserved, zero    8  header bytes u32    12  mask bytes u32
    16 value bytes u64    24 CRC-32 of everything but these four bytes u32    28 reserved, zero
    32 header (msgpack)    mask section    value section
"""

import struct
import zlib
from typing import NamedTuple

from edge_fl.core.errors import FrameError

__all__ = ["VERSION", "Sections", "open_frame", "seal_frame", "unsealed_frame"]

VERSION = 1
_PRELUDE = struct.Struct("<4sB3sIIQI4s")
_CHECKSUM = slice(24, 28)
_ALIGN = 8


class Sections(NamedTuple):
    """The bytes of each section."""

    head: memoryview
    mask: memoryview
    values: memoryview


def unsealed_frame(magic: bytes, head: bytes, mask: bytes, size: int) -> tuple[bytearray, memoryview]:
    """A frame without its checksum, and its value section of ``size`` bytes, zero until they are written."""
    mask_at = _aligned(_PRELUDE.size + len(head))
    values_at = _aligned(mask_at + len(mask))
    frame = bytearray(values_at + size)
    _PRELUDE.pack_into(frame, 0, magic, VERSION, bytes(3), len(head), len(mask), size, 0, bytes(4))
    frame[_PRELUDE.size : _PRELUDE.size + len(head)] = head
    frame[mask_at : mask_at + len(mask)] = mask
    return frame, memoryview(frame)[values_at:]


def seal_frame(frame: bytearray) -> bytes:
    """The frame with its checksum, once its values are written."""
    struct.pack_into("<I", frame, _CHECKSUM.start, _checksum(memoryview(frame)))
    return bytes(frame)


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
