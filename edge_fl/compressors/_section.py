"""What the compressors' value sections are made of: headers, and numbers packed to a few bits each.

Bits run from the highest of each byte to the lowest, a number's highest bit first; the bits that fill the last
byte are zero. Everything read here may come from a stranger: what does not fit is a FrameError (``values``).
"""

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.compressors.base import Vector
from edge_fl.errors import ConfigError, FrameError, RunError

__all__ = [
    "LARGEST",
    "add",
    "check_finite",
    "check_ratio",
    "check_scale",
    "from_bits",
    "kept_count",
    "largest",
    "pack_numbers",
    "read_bits",
    "read_floats",
    "read_header",
    "to_bits",
    "unpack_numbers",
]

LARGEST = np.finfo(np.float32).max


def check_ratio(ratio: float, compressor: str) -> None:
    """Refuse a share of entries to keep that is outside (0, 1]: ConfigError."""
    if not 0 < ratio <= 1:
        raise ConfigError(f"{compressor} keeps a share of the entries in (0, 1], not {ratio}.")


def check_finite(values: Vector) -> None:
    """Refuse differences that have diverged, before they are remembered for ever: RunError."""
    if not np.isfinite(values).all():
        raise RunError("The update holds a NaN or an infinity, so it is not sent.")


def add(a: Vector, b: Vector) -> Vector:
    """``[n]`` float32 ``a + b``; a sum too large for float32 is its largest number, so that it can be sent."""
    with np.errstate(over="ignore"):
        total: Vector = np.clip(a + b, -LARGEST, LARGEST)
    return total


def kept_count(ratio: float, n: int) -> int:
    """How many of ``n`` entries a ``ratio`` in (0, 1] keeps: the nearest number, but at least one of any."""
    return min(n, max(1, round(ratio * n)))


def largest(values: NDArray[np.floating[Any]], k: int) -> NDArray[np.int64]:
    """The positions of the ``k`` entries of largest magnitude, ascending; of equal ones the first."""
    if k == 0:
        return np.empty(0, dtype=np.int64)
    magnitudes = np.abs(values)
    threshold = np.partition(magnitudes, len(values) - k)[len(values) - k]
    above = np.flatnonzero(magnitudes > threshold)
    equal = np.flatnonzero(magnitudes == threshold)[: k - len(above)]
    return np.sort(np.concatenate([above, equal]))


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


def check_scale(scale: float) -> None:
    """Refuse a magnitude off the wire that is negative, infinite or no number."""
    if not (math.isfinite(scale) and scale >= 0):
        raise FrameError("values", f"The compressed values have the magnitude {scale}.")


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
