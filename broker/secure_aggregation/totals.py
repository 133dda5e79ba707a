"""What cohorts' sums come to: the change of the model, and how much of the updates went into it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.aggregation.rules import Rule
from edge_fl.aggregation.sums import as_matrix
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.selection import Weights
from edge_fl.core.server_half import Change
from edge_fl.secure_aggregation.masking import Ring
from edge_fl.secure_aggregation.ring import from_ring
from edge_fl.secure_aggregation.roster import Cohort

__all__ = ["CohortSum", "SecureTotals"]


@dataclass(frozen=True)
class CohortSum:
    """A cohort's sum without masks.

    ``sharing`` are the members that shared their secrets: an entry that too few of them hold is in no update. The sum
    is of the updates of the ``survivors``.
    """

    cohort: Cohort
    sharing: tuple[str, ...]
    survivors: tuple[str, ...]
    total: Ring

    def left_out(self, tensor: Tensor) -> NDArray[np.bool_]:
        """The entries of ``tensor``, as a matrix, that too few members hold."""
        return self.cohort.thin(tensor, self.sharing).reshape(tensor.matrix)


class SecureTotals:
    """Applies an aggregation rule to cohorts' sums, as ``edge_fl.aggregation.rules.Accumulator`` does to updates.

    Who holds an entry that too few of the cohort hold counts as one that does not hold it. What nobody counts for stays
    as it is, whatever the rule.

    Parameters
    ----------
    layout
        The model's.
    rule
        What is made of the sums.
    sums
        The cohorts'.

    Attributes
    ----------
    sums
        The cohorts'.
    """

    averaged = 0
    """Rows with too few holders for a robust rule: there is none."""

    def __init__(self, layout: Layout, rule: Rule, sums: Sequence[CohortSum]) -> None:
        self._layout, self._rule, self.sums = layout, rule, sums

    def change(self, weights: Weights) -> Change:
        """By how much ``weights`` are to change, statistics too."""
        return {tensor.name: self._changed(tensor, weights[tensor.name]) for tensor in self._layout.tensors}

    def _changed(self, tensor: Tensor, weights: NDArray[np.float32]) -> NDArray[np.float64]:
        total, held, left_out = (np.zeros(tensor.matrix) for _ in range(3))
        for one in self.sums:
            thin, there = one.left_out(tensor), one.cohort.held(tensor, one.survivors, weighted=True)
            total += from_ring(one.total[tensor.name], one.cohort.exponent(tensor)).reshape(total.shape)
            held += np.where(thin, 0.0, there)
            left_out += np.where(thin, there, 0.0)
        everyone = float(sum(one.cohort.members[client].weight for one in self.sums for client in one.survivors))
        combine = self._rule.combine_of(tensor)
        change = combine(np, as_matrix(weights), total, held, everyone)
        return np.where((held == 0) & (left_out > 0), 0.0, change).reshape(tensor.shape)

    @property
    def left_out(self) -> float:
        """The share of the entries of updates that did not count, as too few members hold them."""
        lost = held = 0.0
        for one in self.sums:
            for tensor in self._layout.tensors:
                count = one.cohort.held(tensor, one.survivors)
                held += float(count.sum())
                lost += float(count[one.left_out(tensor)].sum())
        return lost / held if held else 0.0
