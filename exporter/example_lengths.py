"""Lengths to trace a program with: torch takes axes of one length for one symbol, so no two may agree by chance."""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from edge_fl.core.errors import UnsupportedModelError
from edge_fl.core.layout import Layout
from exporter.open_lengths import Length, length_of

__all__ = ["distinct_batch", "distinct_counts"]

_PROGRESSIONS, _DRAWS = 50, 1000
_LARGEST = 2000  # units of a block; the example's tensors are made


def distinct_counts(layout: Layout, blocks: Sequence[str], taken: Sequence[int]) -> dict[str, int]:
    """Kept units of each of ``blocks``, of which no two axes have one length that differ for other units.

    Parameters
    ----------
    taken
        Lengths that no axis with units may have: those of the model's input.

    Raises
    ------
    UnsupportedModelError
        When there are none among many tried.
    """
    lengths = {length_of(axis) for tensor in (*layout.tensors, *layout.frozen) for axis in tensor.units}
    for counts in _candidates(blocks):
        if _independent(lengths, counts, taken):
            return counts
    raise UnsupportedModelError(
        f"The model's {len(blocks)} blocks of units make too many axes to trace it with a length for each: open fewer "
        "of them with 'edge_fl_dense'."
    )


def distinct_batch(layout: Layout, counts: Mapping[str, int], taken: Sequence[int], multiple: int = 1) -> int:
    """A ``multiple`` of a number, of which neither is a length of an axis or ``taken``."""
    lengths = {length_of(a).of(counts) for tensor in (*layout.tensors, *layout.frozen) for a in tensor.units}
    held = {*lengths, *taken, *([multiple] if multiple > 1 else [])}
    return next(n * multiple for n in count(3) if held.isdisjoint((n, n * multiple)))


def _candidates(blocks: Sequence[str]) -> Iterator[dict[str, int]]:
    """Small numbers first. In their progression ``a + c`` is ``b + b``: a model that has both axes needs others."""
    for start in range(5, 5 + 2 * _PROGRESSIONS, 2):
        yield {block: start + 4 * i for i, block in enumerate(blocks)}
    rng = random.Random(0)
    for i in range(_DRAWS):
        most = min(_LARGEST, (8 + i) * (len(blocks) + 1))
        yield {block: rng.randint(5, most) for block in blocks}


def _independent(lengths: set[Length], counts: Mapping[str, int], taken: Sequence[int]) -> bool:
    """Whether axes of equal length are equal always; fixed ones are alike."""
    seen: dict[int, object] = dict.fromkeys(taken)
    return all(
        seen.setdefault(each.of(counts), key) == key
        for each in lengths
        for key in [each if each.factors else None]
    )
