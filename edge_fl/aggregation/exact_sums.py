"""Weighted sums of updates as whole numbers: exact, so that no order, grouping or machine changes a bit.

An entry d of weight w becomes ``rint(w * 2^k * d)``, a 64-bit integer. The exponent k of a tensor is the largest with
which the sum stays below 2^62: ``2^k < 2^62 / (W * reach)``, for the sum W of all weights and the largest difference
of the tensor in the round, of what counts of it. So n updates add up to their sum within ``n * 2^-(k + 1)``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_fl.aggregation.bounds import WHOLE, Clip, Size
from edge_fl.aggregation.rules import Rule, held_rows
from edge_fl.aggregation.spool import Spool
from edge_fl.aggregation.sums import as_matrix, matrix_kept
from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.selection import Kept, Selection, Weights
from edge_fl.core.server_half import Change
from edge_fl.wire.sum_frame import MOST_BITS, PartialSum, TensorSum

__all__ = [
    "Counted",
    "ExactAccumulator",
    "ExactSum",
    "ExactSums",
    "Held",
    "HeldUpdates",
    "Reach",
    "check_partial",
    "entries_of",
    "exponents_of",
    "reach_of",
]

_EPSILON = 1e-9  # what products in float64 may be off by

Reach = Mapping[str, float]
"""By tensor, the largest absolute difference that is summed."""


class Counted(NamedTuple):
    """What an update counts: its ``weight``, and the shares ``discount`` and ``clip`` of its change."""

    weight: int
    discount: float
    clip: Clip

    def factor(self, tensor: Tensor, exponent: int) -> float:
        """What each difference of ``tensor`` is multiplied by; in this order, by which the bits are told."""
        return self.weight * self.discount * self.clip.of(tensor) * 2.0**exponent


def exponents_of(layout: Layout, weight: int, reach: Reach) -> dict[str, int]:
    """By tensor the exponent k with which ``2^k * weight * reach`` is below 2^62, and at least 2^61; 0 where nothing
    changes.
    """
    return {
        tensor.name: MOST_BITS - math.frexp(weight * reach[tensor.name])[1] if reach[tensor.name] else 0
        for tensor in layout.tensors
    }


def entries_of(layout: Layout, rule: Rule, values: Weights) -> dict[str, NDArray[np.float32]]:
    """By tensor, what ``rule`` sums of an update's differences ``values``."""
    return {tensor.name: rule.entries(tensor, values[tensor.name]) for tensor in layout.tensors}


def reach_of(entries: Weights) -> Reach:
    """By tensor, the largest absolute value of an update's ``entries``."""
    return {name: float(np.abs(held).max(initial=0)) for name, held in entries.items()}


class Held(NamedTuple):
    """An update whose values a worker has: its ``size``, its ``reach``, and its number in a part of the round."""

    size: Size
    reach: Reach
    part: int
    number: int


class ExactSum:
    """The sum of some updates of a round; sums of others can be merged into it, in any order.

    Parameters
    ----------
    layout
        The model's.
    exponents
        How fine the whole numbers are, by tensor, for all updates of the round.

    Attributes
    ----------
    clients, weight
        How many updates it is of, and what they count together.
    """

    def __init__(self, layout: Layout, exponents: Mapping[str, int]) -> None:
        self._layout, self.exponents = layout, exponents
        self.clients = self.weight = 0
        self._total = {tensor.name: np.zeros(tensor.matrix, dtype=np.int64) for tensor in layout.tensors}
        # Of each row, until an update comes that leaves out some of its columns.
        self._holders = {tensor.name: np.zeros((tensor.matrix[0], 1), dtype=np.int64) for tensor in layout.tensors}

    def add(self, selection: Selection, entries: Weights, counted: Counted) -> None:
        """Add an update: what the rule sums of the differences kept under ``selection``, float32 by tensor."""
        self.clients += 1
        self.weight += counted.weight
        for tensor in self._layout.tensors:
            values = as_matrix(entries[tensor.name])
            rows, columns = matrix_kept(tensor, selection.axes[tensor.name])
            factor = counted.factor(tensor, self.exponents[tensor.name])
            scaled = np.rint(values.astype(np.float64) * factor)
            self._total[tensor.name][_index(rows, columns)] += scaled.astype(np.int64)
            if columns is not None:
                self._count_entries(tensor)
            self._holders[tensor.name][_index(held_rows(tensor, values, rows), columns)] += counted.weight

    def merge(self, other: PartialSum) -> None:
        """Add the sum of other updates, of the same round and exponents."""
        self.clients += other.header.clients
        self.weight += other.header.weight
        for tensor in self._layout.tensors:
            held = other.tensors[tensor.name]
            if held.holders.shape[1] > 1:
                self._count_entries(tensor)
            self._total[tensor.name][held.rows] += held.total
            self._holders[tensor.name][held.rows] += held.holders

    def _count_entries(self, tensor: Tensor) -> None:
        holders = self._holders[tensor.name]
        if holders.shape != tensor.matrix:
            self._holders[tensor.name] = np.repeat(holders, tensor.matrix[1], axis=1)

    def tensors(self) -> dict[str, TensorSum]:
        """The sums, of the rows that somebody holds."""
        found = {}
        for name, total in self._total.items():
            rows = np.flatnonzero(self._holders[name].any(axis=1))
            found[name] = TensorSum(rows, self._holders[name][rows], total[rows])
        return found

    def change(self, rule: Rule, weights: Weights) -> Change:
        """By how much ``weights`` are to change: the rule applied to them and to the sum of all updates."""
        return {tensor.name: self._changed(tensor, rule, weights[tensor.name]) for tensor in self._layout.tensors}

    def _changed(self, tensor: Tensor, rule: Rule, weights: NDArray[np.float32]) -> NDArray[np.float64]:
        if not self.clients:
            return np.zeros(tensor.shape)
        found = self._total[tensor.name] * 2.0 ** -self.exponents[tensor.name]
        held, combine = self._holders[tensor.name].astype(np.float64), rule.combine_of(tensor)
        changed = combine(np, as_matrix(weights), found, held, float(self.weight))
        return np.asarray(changed).reshape(tensor.shape)


def check_partial(layout: Layout, partial: PartialSum, reach: Reach) -> None:
    """Hold a partial sum against the largest differences of the round; FrameError (``values``) where it is beyond."""
    for tensor, exponent in zip(layout.tensors, partial.header.exponents, strict=True):
        held = partial.tensors[tensor.name]
        rounded = 0.5 * partial.header.clients
        most = held.holders * (reach[tensor.name] * 2.0**exponent * (1 + _EPSILON)) + rounded
        if (np.abs(held.total) > most).any():
            raise FrameError("values", f"The sum of '{tensor.name}' is more than its updates can come to.")


class HeldUpdates:
    """Updates of a round that wait on disk until it is known what each counts, and how fine the sums are.

    Parameters
    ----------
    layout
        The model's.
    rule
        Says what of an update is summed.
    spool
        Where they wait.
    """

    def __init__(self, layout: Layout, rule: Rule, spool: Spool) -> None:
        self._layout, self._rule, self._spool = layout, rule, spool
        self._selections: list[Selection] = []

    def __len__(self) -> int:
        return len(self._selections)

    def hold(self, selection: Selection, values: Weights) -> Reach:
        """Keep an update's differences ``values``, float32 by tensor, on disk; StateError when that has no room."""
        entries = entries_of(self._layout, self._rule, values)
        self._spool.append(entries)
        self._selections.append(selection)
        return reach_of(entries)

    def add_to(self, total: ExactSum, counted: Iterable[tuple[int, Counted]]) -> None:
        """Add the updates of these numbers, by the order in which they came, for what each counts."""
        for number, each in counted:
            total.add(self._selections[number], self._spool.values(number), each)

    def close(self) -> None:
        """Forget them."""
        self._spool.close()


class ExactSums(ABC):
    """Exact sums of a round's updates, wherever these wait.

    Parameters
    ----------
    layout
        The model's.
    rule
        What is made of the sums.
    """

    averaged = 0
    """Rows with too few holders for a robust rule: there is none."""

    def __init__(self, layout: Layout, rule: Rule) -> None:
        self._layout, self._rule = layout, rule
        self._counted: list[Counted] = []
        self._reach = dict.fromkeys((tensor.name for tensor in layout.tensors), 0.0)

    def _take(self, reach: Reach, samples: int, discount: float, clip: Clip) -> None:
        """Let the next update count."""
        counted = Counted(self._rule.weight(samples), discount, clip)
        self._counted.append(counted)
        for tensor in self._layout.tensors:
            share = counted.discount * counted.clip.of(tensor)
            self._reach[tensor.name] = max(self._reach[tensor.name], share * reach[tensor.name])

    def change(self, weights: Weights) -> Change:
        """As :meth:`edge_fl.aggregation.rules.Accumulator.change`."""
        everyone = sum(counted.weight for counted in self._counted)
        total = ExactSum(self._layout, exponents_of(self._layout, everyone, self._reach))
        self._add_up(total, self._counted)
        return total.change(self._rule, weights)

    @abstractmethod
    def _add_up(self, total: ExactSum, counted: Sequence[Counted]) -> None:
        """Add all updates to ``total``, each for what it counts, and forget them."""


class ExactAccumulator(ExactSums):
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

    def __init__(self, layout: Layout, rule: Rule, spool: Spool) -> None:
        super().__init__(layout, rule)
        self._updates = HeldUpdates(layout, rule, spool)

    def add(
        self, selection: Selection, values: Weights, samples: int, discount: float = 1, *, clip: Clip = WHOLE
    ) -> None:
        """As :meth:`edge_fl.aggregation.rules.Accumulator.add`; ``values`` are written to disk."""
        self._take(self._updates.hold(selection, values), samples, discount, clip)

    def _add_up(self, total: ExactSum, counted: Sequence[Counted]) -> None:
        try:
            self._updates.add_to(total, enumerate(counted))
        finally:
            self._updates.close()


def _index(rows: Kept, columns: Kept) -> tuple[NDArray[np.int64] | slice, ...]:
    if rows is not None and columns is not None:
        return np.ix_(rows, columns)
    return tuple(slice(None) if kept is None else kept for kept in (rows, columns))
