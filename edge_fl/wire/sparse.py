"""Some of the kept entries of an update, as float32, and which they are: what a method sends that leaves entries out.

Unlike a compressor's, the section tells an entry that is not sent from one that is sent and zero. Of the entries sent
and the others it codes the positions of the fewer, so that it takes hardly more than a dense one at worst.
"""

import struct

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import FrameError
from edge_fl.wire.bits import read_floats, read_header
from edge_fl.wire.context import Vector
from edge_fl.wire.positions import Positions, decode_golomb, encode_golomb, golomb_width

__all__ = ["SPARSE", "decode_sent", "encode_sent"]

SPARSE = "sparse"
"""What the header calls it."""

_HEADER = struct.Struct("<BI")  # the positions' width, and how many entries are sent


def encode_sent(values: Vector, sent: NDArray[np.bool_]) -> bytes:
    """The section of those of ``[n]`` float32 ``values`` that ``sent`` (``[n]``) names."""
    count, told = len(values), _told(sent)
    width = golomb_width(len(told), count)
    entries = values[sent]
    return _HEADER.pack(width, len(entries)) + entries.astype("<f4").tobytes() + encode_golomb(told, width)


def decode_sent(section: memoryview, count: int) -> tuple[Vector, NDArray[np.bool_]]:
    """``[count]`` float32 with zeros where nothing was sent, and ``[count]``, which were.

    Raises
    ------
    FrameError
        ``values`` when :func:`encode_sent` cannot have written ``section``.
    """
    (width, k), rest = read_header(_HEADER, section)
    if k > count:
        raise FrameError("values", f"There are {k} entries where at most {count} belong.")
    entries, rest = read_floats(rest, k)
    few = 2 * k <= count
    sent = np.full(count, not few)
    sent[decode_golomb(rest, width=width, k=k if few else count - k, count=count)] = few
    vector = np.zeros(count, dtype=np.float32)
    vector[sent] = entries
    return vector, sent


def _told(sent: NDArray[np.bool_]) -> Positions:
    """The positions of the entries sent, or of the others, whichever are fewer."""
    few = 2 * int(np.count_nonzero(sent)) <= len(sent)
    return np.flatnonzero(sent if few else ~sent)
