"""Multi-Krum (Blanchard et al. 2017, *Machine Learning with Adversaries*, section 4), over the rows that two share."""

import numpy as np
from numpy.typing import NDArray

from edge_fl.aggregation.robust.base import UpdateRule, Updates

__all__ = ["RULE", "MultiKrum"]


class MultiKrum(UpdateRule):
    """Keeps the updates that lie closest to most others, as many as are no attackers; the rest count nothing.

    An update's score is the sum of its squared distances to the n - f - 2 nearest others, f being the number of
    attackers. The distance of two is a mean over the entries that both hold. Two that share none are no neighbours;
    an update with too few neighbours gets its mean distance for those it lacks.
    """

    name = "multi_krum"

    def weigh(self, updates: Updates) -> NDArray[np.float64]:
        """1 for those that are kept, 0 for the others."""
        n = len(updates)
        attackers = int(self.attackers * n + 1e-9)
        scores = _scores(_distances(updates), max(n - attackers - 2, 1))
        kept = np.argsort(scores, kind="stable")[: self.kept(n, attackers)]
        weights = np.zeros(n)
        weights[kept] = 1.0
        return weights

    def kept(self, updates: int, attackers: int) -> int:
        """How many of so many ``updates`` are kept."""
        return max(updates - attackers, 1)


def _distances(updates: Updates) -> NDArray[np.float64]:
    """Mean squared distances ``[K, K]`` over shared entries; infinite where there are none, and to oneself."""
    n = len(updates)
    total, shared = np.zeros((n, n)), np.zeros((n, n))
    for block in updates.blocks():
        values = block.values.reshape(n, -1).astype(np.float64)
        held = block.held.reshape(n, -1).astype(np.float64)
        squares = (values * values) @ held.T
        total += squares + squares.T - 2 * (values @ values.T)  # a value is 0 where it is not held
        shared += held @ held.T
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = np.where(shared > 0, np.maximum(total, 0) / shared, np.inf)
    np.fill_diagonal(distances, np.inf)
    return distances


def _scores(distances: NDArray[np.float64], neighbours: int) -> NDArray[np.float64]:
    nearest = np.sort(distances, axis=1)[:, :neighbours]
    near = np.isfinite(nearest)
    counts = near.sum(axis=1)
    sums = np.where(near, nearest, 0).sum(axis=1)
    scores = np.full(len(distances), np.inf)
    np.divide(sums * neighbours, counts, out=scores, where=counts > 0)
    return scores


RULE = MultiKrum
