"""The idx format of MNIST and its descendants, gzipped or plain: an array of unsigned bytes behind its shape."""

import math
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError

__all__ = ["decode_idx", "idx_shape"]

_GZIP = b"\x1f\x8b"
_ANY_GZIP_HEADER = 16 + zlib.MAX_WBITS
_UNSIGNED_BYTE = 8
_MOST_AXES = 8
_MOST_ENTRIES = 1 << 40
_DEFLATED = 1032  # bytes that one of a gzip stream can become, at the most


def decode_idx(content: bytes, shape: tuple[int, ...], *, where: str) -> NDArray[np.uint8]:
    """Decode an idx file.

    Parameters
    ----------
    content
        The file's bytes, gzipped or not.
    shape
        The shape that belongs there. No more than its bytes are ever decompressed, whatever the file says.
    where
        The file's name, for the error's sentence.

    Returns
    -------
    ``shape`` uint8, read-only.

    Raises
    ------
    DataError
        When the file is damaged, truncated, or holds anything but unsigned bytes of this shape.
    """
    header = struct.pack(f">HBB{len(shape)}I", 0, _UNSIGNED_BYTE, len(shape), *shape)
    expected = len(header) + math.prod(shape)
    raw = _gunzip(content, expected, where) if content.startswith(_GZIP) else content
    if not header.startswith(raw[:3]):
        raise DataError(f"'{where}' is no idx file of unsigned bytes.")
    if not header.startswith(raw[: len(header)]):
        raise DataError(f"'{where}' holds an array of another shape than {shape}.")
    if len(raw) != expected:
        raise DataError(f"'{where}' is truncated or too long: {shape} takes {expected} bytes.")
    return np.frombuffer(raw, dtype=np.uint8, offset=len(header)).reshape(shape)


def idx_shape(content: bytes, *, where: str) -> tuple[int, ...]:
    """The shape that an idx file announces, without reading the array; raises DataError as :func:`decode_idx`.

    One that takes more bytes than the file can hold is refused here, so that they are never made room for.
    """
    packed = content.startswith(_GZIP)
    longest = 4 + 4 * _MOST_AXES
    head = _gunzip(content, longest, where, whole=False) if packed else content[:longest]
    axes = head[3] if len(head) > 3 else 0
    if not head.startswith(struct.pack(">HB", 0, _UNSIGNED_BYTE)) or not 0 < axes <= _MOST_AXES:
        raise DataError(f"'{where}' is no idx file of unsigned bytes.")
    if len(head) < 4 + 4 * axes:
        raise DataError(f"'{where}' is truncated: it ends before its shape does.")
    shape = struct.unpack_from(f">{axes}I", head, 4)
    endless = math.prod(length or 1 for length in shape) > _MOST_ENTRIES  # also of an array without entries
    if endless or math.prod(shape) > len(content) * (_DEFLATED if packed else 1):
        raise DataError(f"'{where}' is truncated: it cannot hold the {shape} it announces.")
    return shape


def _gunzip(content: bytes, expected: int, where: str, *, whole: bool = True) -> bytes:
    """The first ``expected`` bytes and one more; ``whole`` when there must not be others."""
    stream = zlib.decompressobj(_ANY_GZIP_HEADER)
    try:
        # One byte more than expected: it lets the decompressor reach the trailer, and tells a file too long.
        raw = stream.decompress(content, expected + 1)
    except zlib.error as error:
        raise DataError(f"'{where}' is damaged: {error}.") from error
    if whole and not stream.eof and len(raw) <= expected:
        raise DataError(f"'{where}' is truncated: its gzip stream does not end.")
    return raw
