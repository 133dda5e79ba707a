"""Coordinate-wise median (Yin et al. 2018, *Byzantine-Robust Distributed Learning*, Definition 1), a client a vote."""

import numpy as np
from numpy.typing import NDArray

from edge_fl.aggregation.robust.base import EntryRule

__all__ = ["RULE"]


class Median(EntryRule):
    """The middle value, or the mean of the two."""

    name = "median"

    def centre(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """The median of each row."""
        k = values.shape[1]
        low, high = values[:, (k - 1) // 2].astype(np.float64), values[:, k // 2]
        return (low + high) / 2


RULE = Median
