"""Two codes for which entries of a vector are there: ascending positions to bits, and back.

Golomb-Rice (Golomb 1966, Rice 1979) codes the gaps between positions, near the entropy when they are spread at
random. The block code is that of Ozfatura et al., *Time-Correlated Sparsification* (2021), section II-E.
"""

import math

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import FrameError
from edge_fl.wire.bits import from_bits, read_bits, to_bits

__all__ = [
    "MAX_WIDTH",
    "Positions",
    "block_width",
    "decode_block",
    "decode_golomb",
    "encode_block",
    "encode_golomb",
    "golomb_width",
]

Positions = NDArray[np.int64]
"""``[k]`` int64, ascending, none twice."""

MAX_WIDTH = 31
"""The widest remainder, or position in a block, that a section may ask for, in bits."""


def golomb_width(k: int, n: int) -> int:
    """The best width of a remainder when ``k`` of ``n`` positions are there, in bits.

    ``b* = 1 + floor(log2(ln(phi - 1) / ln(1 - k/n)))``, phi the golden ratio (Sattler et al. 2019, Algorithm 3),
    and 0 where that is negative.
    """
    if k in (0, n):
        return 0
    golden = (math.sqrt(5) - 1) / 2
    return max(0, 1 + math.floor(math.log2(math.log(golden) / math.log1p(-k / n))))


def encode_golomb(positions: Positions, width: int) -> bytes:
    """Golomb-Rice of the gaps with divisor ``2**width``.

    The gap before a position is the number of positions skipped. All remainders come first, ``width`` bits each,
    then all quotients, as that many ones and a zero: the bits of the usual code in another order, which lets both
    ends work on whole arrays.
    """
    gaps = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum((gaps >> width) + 1) - 1
    unary = np.ones(ends[-1] + 1 if len(ends) else 0, dtype=np.uint8)
    unary[ends] = 0
    return np.packbits(np.concatenate([to_bits(gaps & ((1 << width) - 1), width), unary])).tobytes()


def decode_golomb(section: memoryview, *, width: int, k: int, count: int) -> Positions:
    """The ``k`` positions below ``count`` that :func:`encode_golomb` wrote.

    Raises
    ------
    FrameError
        ``values`` when ``section`` is anything else.
    """
    _check(width, k, count)
    low = k * width
    if not low + k <= 8 * len(section) <= low + k + (count >> width) + 7:
        raise FrameError("values", f"{len(section)} bytes cannot hold {k} positions among {count}.")
    bits = np.unpackbits(np.frombuffer(section, dtype=np.uint8))
    ends = np.flatnonzero(bits[low:] == 0)[:k]
    if len(ends) < k:
        raise FrameError("values", f"There are {len(ends)} positions where {k} belong.")
    read_bits(section, low + (int(ends[-1]) + 1 if k else 0))
    quotients = np.diff(ends, prepend=-1) - 1
    positions = np.cumsum(((quotients << width) | from_bits(bits[:low], width, k)) + 1) - 1
    return _checked(positions, count)


def block_width(k: int, n: int) -> int:
    """The bits of a position within a block, the whole number nearest to log2(1/phi), where phi = ``k/n``."""
    return round(math.log2(n / k)) if k else 0


def encode_block(positions: Positions, width: int, count: int) -> bytes:
    """The block code: ``1`` and the position in its block of ``2**width`` entries; ``0`` at each block's end."""
    blocks = -(-count // (1 << width))
    bits = np.zeros(len(positions) * (1 + width) + blocks, dtype=np.uint8)
    starts = np.arange(len(positions)) * (1 + width) + (positions >> width)
    bits[starts] = 1
    bits[_fields(starts, width)] = to_bits(positions & ((1 << width) - 1), width)
    return np.packbits(bits).tobytes()


def decode_block(section: memoryview, *, width: int, k: int, count: int) -> Positions:
    """The ``k`` positions below ``count`` that :func:`encode_block` wrote (Algorithm 4).

    Raises
    ------
    FrameError
        ``values`` when ``section`` is anything else.
    """
    _check(width, k, count)
    bits = read_bits(section, k * (1 + width) - (-count // (1 << width)))
    starts = _starts(bits.tobytes(), width, k)
    low = from_bits(bits[_fields(starts, width)], width, k)
    blocks = starts - np.arange(k) * (1 + width)
    return _checked((blocks << width) | low, count)


def _fields(starts: Positions, width: int) -> Positions:
    return (starts[:, None] + np.arange(1, width + 1)).reshape(-1)


def _starts(bits: bytes, width: int, k: int) -> Positions:
    """Where the ``k`` entries begin; a search for the next one skips the ends of empty blocks."""
    starts: list[int] = []
    at = 0
    for _ in range(k):
        start = bits.find(1, at)
        if start < 0:
            raise FrameError("values", f"There are {len(starts)} positions where {k} belong.")
        starts.append(start)
        at = start + 1 + width
    if at > len(bits) or bits.find(1, at) >= 0:
        raise FrameError("values", f"There are more than the {k} positions that belong there.")
    return np.array(starts, dtype=np.int64)


def _check(width: int, k: int, count: int) -> None:
    if width > MAX_WIDTH or k > count:
        raise FrameError("values", f"{k} positions among {count}, at {width} bits each, make no sense.")


def _checked(positions: Positions, count: int) -> Positions:
    if len(positions) and (positions[-1] >= count or (np.diff(positions) <= 0).any()):
        raise FrameError("values", f"The positions do not rise, or go beyond the {count} entries there are.")
    return positions
