"""The section of a few float32 entries and their positions, which ``topk`` and ``dgc`` share."""

import struct
from typing import Literal

import numpy as np

from edge_fl.core.errors import FrameError
from edge_fl.wire.bits import read_floats, read_header
from edge_fl.wire.context import Vector
from edge_fl.wire.positions import (
    Positions,
    block_width,
    decode_block,
    decode_golomb,
    encode_block,
    encode_golomb,
    golomb_width,
)

__all__ = ["Code", "decode_sparse", "encode_sparse"]

Code = Literal["golomb", "block"]
"""How positions are coded."""

_HEADER = struct.Struct("<BBI")  # the code, its width, the number of entries
_GOLOMB, _BLOCK = 0, 1


def encode_sparse(values: Vector, kept: Positions, code: Code) -> bytes:
    """The entries of ``values`` at the positions ``kept``; all others are taken for zero."""
    k, count = len(kept), len(values)
    if code == "golomb":
        width = golomb_width(k, count)
        header, positions = _HEADER.pack(_GOLOMB, width, k), encode_golomb(kept, width)
    else:
        width = block_width(k, count)
        header, positions = _HEADER.pack(_BLOCK, width, k), encode_block(kept, width, count)
    return header + values[kept].astype("<f4").tobytes() + positions


def decode_sparse(section: memoryview, count: int) -> Vector:
    """The ``[count]`` float32 that :func:`encode_sparse` wrote; FrameError (``values``) on anything else."""
    (code, width, k), rest = read_header(_HEADER, section)
    if code not in (_GOLOMB, _BLOCK):
        raise FrameError("values", f"There is no position code {code}.")
    if k > count:
        raise FrameError("values", f"There are {k} entries where at most {count} belong.")
    entries, rest = read_floats(rest, k)
    decode = decode_golomb if code == _GOLOMB else decode_block
    vector = np.zeros(count, dtype=np.float32)
    vector[decode(rest, width=width, k=k, count=count)] = entries
    return vector
