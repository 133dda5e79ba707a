"""Coordinate-wise trimmed mean (Yin et al. 2018, *Byzantine-Robust Distributed Learning*, Definition 2)."""

import math

import numpy as np
from numpy.typing import NDArray

from edge_fl.aggregation.robust.base import EntryRule

__all__ = ["RULE"]


class TrimmedMean(EntryRule):
    """The mean of what is left when as many of the largest and of the smallest as there may be attackers are gone."""

    name = "trimmed_mean"

    def centre(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """The trimmed mean of each row; at least one value, or the two in the middle, are left."""
        k = values.shape[1]
        cut = min(math.ceil(self.attackers * k - 1e-9), (k - 1) // 2)
        centre: NDArray[np.float64] = values[:, cut : k - cut].mean(axis=1, dtype=np.float64)
        return centre


RULE = TrimmedMean
