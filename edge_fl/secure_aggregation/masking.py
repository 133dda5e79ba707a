"""Masks on an update's numbers, entry by entry of what their owners hold."""

from collections.abc import Collection, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.selection import Selection, Weights
from edge_fl.secure_aggregation.keys import KeyPair, mask_stream, seed_stream
from edge_fl.secure_aggregation.ring import to_ring
from edge_fl.secure_aggregation.roster import Cohort, entries

__all__ = ["Ring", "add_pair", "add_seed", "add_update", "add_vector", "vector_of", "zeros"]

Ring = dict[str, NDArray[np.uint32]]
"""Full tensors of numbers modulo 2^32, by name."""


def zeros(layout: Layout) -> Ring:
    """Where sums begin."""
    return {tensor.name: np.zeros(tensor.shape, dtype=np.uint32) for tensor in layout.tensors}


def vector_of(total: Ring, selection: Selection) -> bytes:
    """What ``selection`` keeps, in the layout's order, little-endian: how a masked update travels."""
    parts = [total[tensor.name][selection.index(tensor)].reshape(-1) for tensor in selection.layout.tensors]
    return np.concatenate(parts).astype("<u4").tobytes()


def add_update(total: Ring, cohort: Cohort, client: str, values: Weights, sharing: Collection[str]) -> None:
    """Add a member's weighted update, its kept ``values`` by tensor; what too few of ``sharing`` hold is left out."""
    selection, weight = cohort.selection(client), cohort.members[client].weight
    for tensor in cohort.layout.tensors:
        full = np.zeros(tensor.shape, dtype=np.float32)
        full[selection.index(tensor)] = values[tensor.name]
        full[cohort.thin(tensor, sharing)] = 0
        total[tensor.name] += to_ring(full, weight, cohort.exponent(tensor), cohort.reach(tensor))


def add_vector(total: Ring, selection: Selection, content: bytes) -> None:
    """Add a masked update; raises FrameError (``values``) when it has another size than what is kept."""
    expected = 4 * entries(selection)
    if len(content) != expected:
        raise FrameError("values", f"The masked update has {len(content)} bytes where {expected} belong.")
    _add(total, selection, np.frombuffer(content, dtype="<u4"), 1)


def add_seed(total: Ring, cohort: Cohort, client: str, seed: bytes, sign: Literal[1, -1]) -> None:
    """Add, or take away, a member's own mask: on all that it holds."""
    selection = cohort.selection(client)
    _add(total, selection, seed_stream(seed, cohort.roster.session, entries(selection)), sign)


def add_pair(total: Ring, cohort: Cohort, pair: tuple[str, str], key: KeyPair, sign: Literal[1, -1]) -> None:
    """Add, or take away, the mask that the first of ``pair`` has with the second: on all that both hold.

    ``key`` is either's. The one whose id comes first adds the mask where the other takes it away, so the sum of both
    has none.
    """
    client, other = pair
    selection = cohort.shared(client, other)
    public = cohort.members[other].masking
    if key.public == public:
        public = cohort.members[client].masking
    stream = mask_stream(key, public, cohort.roster.session, entries(selection))
    _add(total, selection, stream, sign if client < other else -sign)


def _add(total: Ring, selection: Selection, stream: NDArray[np.uint32], sign: int) -> None:
    for tensor, part in _parts(selection, stream):
        index = selection.index(tensor)
        if sign > 0:
            total[tensor.name][index] += part
        else:
            total[tensor.name][index] -= part


def _parts(selection: Selection, stream: NDArray[np.uint32]) -> Iterator[tuple[Tensor, NDArray[np.uint32]]]:
    start = 0
    for tensor in selection.layout.tensors:
        shape = selection.shape(tensor)
        size = int(np.prod(shape, dtype=np.int64))
        yield tensor, stream[start : start + size].reshape(shape)
        start += size
