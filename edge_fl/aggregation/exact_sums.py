"""Weighted sums of updates as whole numbers: exact, so that no order, grouping or machine changes a bit.

An entry d of weight w becomes ``rint(w * 2^k * d)``, a 64-bit integer. The exponent of a tensor is the largest with
which the sum stays below 2^62: ``2^k < 2^62 / (W * reach)``, for the sum W of all weights and the largest difference
of the tensor in the round. So n updates add up to their sum within ``n * 2^-(k + 1)``.
"""

import math

import numpy as np
from numpy.typing import NDArray

from edge_fl.aggregation.bounds import WHOLE, Clip
from edge_fl.aggregation.part import Part
from edge_fl.aggregation.rules import Rule, held_rows
from edge_fl.aggregation.spool import Spool
from edge_fl.aggregation.sums import as_matrix, matrix_kept, matrix_shape
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.selection import Kept, Selection, Weights
from edge_fl.core.server_half import Change

__all__ = ["ExactAccumulator"]

_BITS = 62


class ExactAccumulator:
    """Takes the place of :class:`edge_fl.aggregation.rules.Accumulator`, for sums that are exact.

    Updates wait on disk: their weights and their largest differences decide how fine the whole numbers are.

    Parameters
    ----------
    layout
        The model's.
    rule
        What is made of the sums.
    spool
        Where updates are kept until :meth:`change`.
    """

    averaged = 0
    """Rows with too few holders for a robust rule: there is none."""

    def __init__(self, layout: Layout, rule: Rule, spool: Spool) -> None:
        self._layout, self._rule, self._spool = layout, rule, spool
        self._parts: list[Part] = []
        self._reach = dict.fromkeys((tensor.name for tensor in layout.tensors), 0.0)

    def add(
        self, selection: Selection, values: Weights, samples: int, discount: float = 1, *, clip: Clip = WHOLE
    ) -> None:
        """As :meth:`edge_fl.aggregation.rules.Accumulator.add`; ``values`` are written to disk."""
        part = Part(selection, samples, self._rule.weight(samples), discount, clip)
        entries = {tensor.name: self._rule.entries(tensor, values[tensor.name]) for tensor in self._layout.tensors}
        for name, held in entries.items():
            self._reach[name] = max(self._reach[name], float(np.abs(held).max(initial=0)))
        self._spool.append(entries)
        self._parts.append(part)

    def change(self, weights: Weights) -> Change:
        """As :meth:`edge_fl.aggregation.rules.Accumulator.change`."""
        totals = {tensor.name: np.zeros(matrix_shape(tensor), dtype=np.int64) for tensor in self._layout.tensors}
        held = {tensor.name: np.zeros(matrix_shape(tensor)) for tensor in self._layout.tensors}
        try:
            for part, values in zip(self._parts, self._spool, strict=True):
                for tensor in self._layout.tensors:
                    self._add(tensor, part, as_matrix(values[tensor.name]), totals[tensor.name], held[tensor.name])
        finally:
            self._spool.close()
        return {
            tensor.name: self._changed(tensor, weights[tensor.name], totals[tensor.name], held[tensor.name])
            for tensor in self._layout.tensors
        }

    def _add(
        self,
        tensor: Tensor,
        part: Part,
        values: NDArray[np.float32],
        total: NDArray[np.int64],
        held: NDArray[np.float64],
    ) -> None:
        rows, columns = matrix_kept(tensor, part.selection.axes[tensor.name])
        # In this order, by which the bits are told; `part.share` would round elsewhere.
        factor = part.weight * part.discount * part.clip.of(tensor) * 2.0 ** self._exponent(tensor)
        scaled = np.rint(values.astype(np.float64) * factor)
        total[_index(rows, columns)] += scaled.astype(np.int64)
        held[_index(held_rows(tensor, values, rows), columns)] += part.weight

    def _exponent(self, tensor: Tensor) -> int:
        """``2^k * W * reach`` is below 2^62, and at least 2^61."""
        return _BITS - math.frexp(self._everyone * self._reach[tensor.name])[1] if self._reach[tensor.name] else 0

    @property
    def _everyone(self) -> int:
        return sum(part.weight for part in self._parts)

    def _changed(
        self,
        tensor: Tensor,
        weights: NDArray[np.float32],
        total: NDArray[np.int64],
        held: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        found, combine = total * 2.0 ** -self._exponent(tensor), self._rule.combine_of(tensor)
        if not self._parts:
            return np.zeros(tensor.shape)
        return np.asarray(combine(np, as_matrix(weights), found, held, float(self._everyone))).reshape(
            tensor.shape
        )


def _index(rows: Kept, columns: Kept) -> tuple[NDArray[np.int64] | slice, ...]:
    if rows is not None and columns is not None:
        return np.ix_(rows, columns)
    return tuple(slice(None) if kept is None else kept for kept in (rows, columns))
