"""A round's updates on disk, and the change that a robust rule makes of them, in bounded memory."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.aggregation.bounds import WHOLE, Clip
from edge_fl.aggregation.part import Part
from edge_fl.aggregation.robust.base import Block, EntryRule, RobustRule, UpdateRule
from edge_fl.aggregation.rules import Accumulator, Rule, held_rows
from edge_fl.aggregation.spool import Spool
from edge_fl.aggregation.sums import as_matrix, matrix_kept
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.selection import Kept, Selection, Weights
from edge_fl.core.server_half import Change

__all__ = ["RobustAccumulator"]

_BLOCK = (
    1 << 22
)  # entries of all updates together that are in memory at a time, some 60 MB with what is made of them


class RobustAccumulator:
    """Takes the place of :class:`edge_fl.aggregation.rules.Accumulator` where a robust rule has a say.

    Parameters
    ----------
    layout
        The model's.
    rule
        The method's: what becomes of a row that few hold.
    robust
        What replaces the sum of changes, or weighs the updates in it.
    spool
        Where updates are kept until :meth:`change`.
    sums
        Makes the plain sums of updates that were weighed.

    Attributes
    ----------
    averaged
        After :meth:`change`: rows that too few clients held for the robust rule. Their mean was taken.
    """

    def __init__(
        self, layout: Layout, rule: Rule, robust: RobustRule, *, spool: Spool, sums: Callable[[], Accumulator]
    ) -> None:
        self._layout, self._rule, self._robust = layout, rule, robust
        self._spool, self._sums = spool, sums
        self._parts: list[Part] = []
        self.averaged = 0

    def add(
        self, selection: Selection, values: Weights, samples: int, discount: float = 1, *, clip: Clip = WHOLE
    ) -> None:
        """As :meth:`edge_fl.aggregation.rules.Accumulator.add`; ``values`` are written to disk."""
        self._spool.append(values)
        self._parts.append(Part(selection, samples, self._rule.weight(samples), discount, clip))

    def change(self, weights: Weights) -> Change:
        """As :meth:`edge_fl.aggregation.rules.Accumulator.change`."""
        try:
            if isinstance(self._robust, UpdateRule):
                return self._weighed(self._robust, weights)
            assert isinstance(self._robust, EntryRule)
            return {t.name: self._centred(self._robust, t, weights[t.name]) for t in self._layout.tensors}
        finally:
            self._spool.close()

    # --- what rules see (robust.base.Updates)

    @property
    def weights(self) -> NDArray[np.float64]:
        """What each update counts."""
        return np.array([part.weight for part in self._parts], dtype=np.float64)

    def __len__(self) -> int:
        return len(self._parts)

    def blocks(self) -> Iterator[Block]:
        """All updates, some rows of a tensor at a time."""
        for tensor in self._layout.tensors:
            for _, block in self._blocks(tensor):
                yield block

    def _blocks(self, tensor: Tensor) -> Iterator[tuple[slice, Block]]:
        rows, columns = tensor.matrix
        step = max(_BLOCK // max(columns * len(self._parts), 1), 1)
        for start in range(0, rows, step):
            block = slice(start, min(start + step, rows))
            yield block, self._block(tensor, block, columns)

    def _block(self, tensor: Tensor, block: slice, columns: int) -> Block:
        count = block.stop - block.start
        values = np.zeros((len(self._parts), count, columns), dtype=np.float32)
        held = np.zeros(values.shape, dtype=np.bool_)
        for k, part in enumerate(self._parts):
            kept, across = matrix_kept(tensor, part.selection.axes[tensor.name])
            entries = self._rule.entries(tensor, as_matrix(self._spool.values(k)[tensor.name]))
            scale = np.float32(part.share(tensor))
            found, where = _within(kept, block)
            values[k][_index(where, across)] = entries[found] * scale
            there = held_rows(tensor, entries, kept)
            held[k][_index(_within(there, block)[1], across)] = True
        return Block(values, held)

    # --- what is made of them

    def _weighed(self, rule: UpdateRule, weights: Weights) -> Change:
        sums = self._sums()
        for part, values, times in zip(self._parts, self._spool, rule.weigh(self), strict=True):
            if times > 0:
                whole = 1 if times == 1 else float(times)
                sums.add(part.selection, values, part.samples, part.discount, clip=part.clip, times=whole)
        return sums.change(weights)

    def _centred(self, rule: EntryRule, tensor: Tensor, old: NDArray[np.float32]) -> NDArray[np.float64]:
        combine, before, each = self._rule.combine_of(tensor), as_matrix(old), self.weights
        result = np.empty(tensor.matrix)
        for block, updates in self._blocks(tensor):
            held = np.einsum("k,krs->rs", each, updates.held)
            total = np.einsum("k,krs->rs", each, updates.values, dtype=np.float64)
            counts = updates.held.sum(axis=0)
            self._centre(rule, updates, counts, held, total)
            few = (counts > 0) & (counts < rule.needs)
            self.averaged += int(few.any(axis=1).sum())
            result[block] = combine(np, before[block], total, held, float(each.sum()))
        return result.reshape(tensor.shape)

    def _centre(
        self, rule: EntryRule, updates: Block, counts: NDArray[Any], held: NDArray[Any], total: NDArray[Any]
    ) -> None:
        """Put what the holders of an entry count, times its centre, in place of its ``total``."""
        n = len(self._parts)
        values = np.where(updates.held, updates.values, np.inf).reshape(n, -1).T
        values = np.sort(values, axis=1)  # what is not held comes last
        flat, who, where = total.reshape(-1), held.reshape(-1), counts.reshape(-1)
        for count in np.unique(where):
            if count >= max(rule.needs, 1):
                entries = np.flatnonzero(where == count)
                flat[entries] = who[entries] * rule.centre(values[entries, :count])


def _within(rows: Kept, block: slice) -> tuple[slice, Any]:
    """Which of ``rows``, in ascending order, lie in ``block``, and where they lie there."""
    if rows is None:
        return block, slice(None)
    first, last = np.searchsorted(rows, [block.start, block.stop])
    return slice(first, last), rows[first:last] - block.start


def _index(rows: Any, columns: Kept) -> Any:
    """A numpy index of ``rows`` (a slice, or indices) and ``columns``."""
    if columns is None:
        return rows
    return (rows, columns) if isinstance(rows, slice) else np.ix_(rows, columns)
