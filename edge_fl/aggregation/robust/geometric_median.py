"""The geometric median (RFA: Pillutla et al. 2022, *Robust Aggregation for Federated Learning*, Algorithm 2)."""

import numpy as np
from numpy.typing import NDArray

from edge_fl.aggregation.robust.base import UpdateRule, Updates

__all__ = ["RULE"]

_MOST_TURNS = 20
_CLOSE = 1e-3  # turns end where no update's weight moved by more than this share
_SMOOTH = 1e-6  # of the typical distance: no update counts more than if it were this far away


class GeometricMedian(UpdateRule):
    """Weighs each update by the inverse of its distance to the centre, until the weights settle (Weiszfeld).

    The centre of an entry is the mean over the updates that hold the entry, and an update's distance a root mean square
    over the entries that it holds.
    """

    name = "geometric_median"

    def weigh(self, updates: Updates) -> NDArray[np.float64]:
        """The inverse distances, the largest of which is 1."""
        weights = np.ones(len(updates))
        for _ in range(_MOST_TURNS):
            distances = _distances(updates, weights * updates.weights)
            floor = _SMOOTH * float(np.median(distances))
            if not distances.max() > floor:
                return weights  # all are alike
            inverse = 1 / np.maximum(distances, max(floor, np.finfo(np.float64).tiny))
            new = inverse / inverse.max()
            settled = np.abs(new - weights).max() <= _CLOSE
            weights = new
            if settled:
                break
        return weights


def _distances(updates: Updates, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each update's root mean square distance, ``[K]``, to the centre that ``weights`` make."""
    n = len(updates)
    total, held = np.zeros(n), np.zeros(n)
    for block in updates.blocks():
        values, there = block.values.reshape(n, -1), block.held.reshape(n, -1)
        sums, counts = np.zeros(values.shape[1]), np.zeros(values.shape[1])
        for k in range(n):  # in this order, on one thread: a product of matrices would not repeat its bits
            sums += weights[k] * values[k]
            counts += weights[k] * there[k]
        centre = sums / np.where(counts > 0, counts, 1)
        for k in range(n):
            off = np.where(there[k], values[k] - centre, 0)
            total[k] += float(np.square(off).sum())
            held[k] += int(there[k].sum())
    return np.sqrt(total / np.maximum(held, 1))


RULE = GeometricMedian
