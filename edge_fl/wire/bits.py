"""Numbers packed to a few bits each, and what value sections begin with.

Bits run from the highest of each byte to the lowest, a number's highest bit first; the bits that fill the last
byte are zero. Everything read here may come from a stranger: what does not fit is a FrameError (``values``).
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import FrameError
from edge_fl.wire.context import Vector

__all__ = ["from_bits", "pack_numbers", "read_bits", "read_floats", "read_header", "to_bits", "unpack_numbers"]


def read_header(header: struct.Struct, section: memoryview) -> tuple[tuple[Any, ...], memoryview]:
    """The fields of ``header`` at the start of ``section``, and what follows them."""
    if len(section) < header.size:
        raise FrameError("values", f"The compressed values have {len(section)} bytes, fewer than their header.")
    return header.unpack_from(section), section[header.size :]


def read_floats(section: memoryview, n: int) -> tuple[Vector, memoryview]:
    """``[n]`` little-endian float32 at the start of ``section``, and what follows them."""
    if len(section) < 4 * n:
        raise FrameError("values", f"The compressed values end before the {n} numbers they announce.")
    return np.frombuffer(section[: 4 * n], dtype="<f4").astype(np.float32), section[4 * n :]


def to_bits(numbers: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """The low ``width`` (0 to 32) bits of each of ``[n]`` unsigned numbers, as ``[n * width]`` uint8."""
    size = 1 if width <= 8 else 4
    octets = numbers.astype(f">u{size}").view(np.uint8).reshape(-1, size)
    bits: NDArray[np.uint8] = np.unpackbits(octets, axis=1)[:, 8 * size - width :].reshape(-1)
    return bits


def from_bits(bits: NDArray[np.uint8], width: int, n: int) -> NDArray[np.int64]:
    """The reverse of :func:`to_bits`: ``[n]`` int64."""
    size = 1 if width <= 8 else 4
    wide = np.zeros((n, 8 * size), dtype=np.uint8)
    wide[:, 8 * size - width :] = bits.reshape(n, width)
    return np.packbits(wide, axis=1).view(f">u{size}").reshape(-1).astype(np.int64)


def read_bits(section: memoryview, n: int) -> NDArray[np.uint8]:
    """The ``[n]`` bits that ``section`` holds, to the byte, the rest of its last byte being zero."""
    if len(section) != -(-n // 8):
        raise FrameError("values", f"The compressed values end in {len(section)} bytes where {n} bits belong.")
    bits = np.unpackbits(np.frombuffer(section, dtype=np.uint8))
    if bits[n:].any():
        raise FrameError("values", "The bits that fill the last byte are not zero.")
    return bits[:n]


def pack_numbers(numbers: NDArray[Any], width: int) -> bytes:
    """``[n]`` unsigned numbers at ``width`` bits each, filled up to a whole byte."""
    return np.packbits(to_bits(numbers, width)).tobytes()


def unpack_numbers(section: memoryview, width: int, n: int) -> NDArray[np.int64]:
    """The reverse of :func:`pack_numbers`; FrameError unless ``section`` holds just these."""
    return from_bits(read_bits(section, n * width), width, n)
