"""From "who owns each index of an axis" to the segments that a layout writes down."""

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Axis, Segment

__all__ = ["FREE", "find_segments"]

FREE = -1
"""The block number of an index that no block owns."""


def find_segments(
    blocks: NDArray[np.int64], units: NDArray[np.int64], names: tuple[str, ...], sizes: tuple[int, ...]
) -> Axis | None:
    """Describe an axis as segments, or None where its indices lie in no such order.

    Parameters
    ----------
    blocks
        ``[n]``: the number of the block that owns each index, or ``FREE``.
    units
        ``[n]``: the unit of that block; of no meaning where free.
    names, sizes
        Name and units (J_b) of each block.
    """
    segments: list[Segment] = []
    start, length = 0, len(blocks)
    while start < length:
        block = int(blocks[start])
        if block == FREE:
            segment = Segment(None, 1, _run(blocks, start))
        else:
            inner = _run(np.where(blocks == block, units, FREE), start)
            segment = Segment(names[block], 1, inner)
            end = start + sizes[block] * inner
            expected = np.repeat(np.arange(sizes[block]), inner)
            whole = end <= length and np.all(blocks[start:end] == block)
            if not whole or not np.array_equal(units[start:end], expected):
                return None
        start += segment.inner * (1 if block == FREE else sizes[block])
        segments = _appended(segments, segment)
    return tuple(segments)


def _run(values: NDArray[np.int64], start: int) -> int:
    others = np.flatnonzero(values[start:] != values[start])
    return int(others[0]) if len(others) else len(values) - start


def _appended(segments: list[Segment], segment: Segment) -> list[Segment]:
    """Repetitions of one block with one inner count are one segment with a larger outer count."""
    last = segments[-1] if segments else None
    if last and segment.block is not None and (last.block, last.inner) == (segment.block, segment.inner):
        return [*segments[:-1], Segment(last.block, last.outer + 1, last.inner)]
    return [*segments, segment]
