"""Weighted differences as whole numbers modulo 2^32, whose sums are exact in any order.

A difference d of weight w becomes ``rint(w * d * 2^k)``. The exponent k is the largest with which the sum over a cohort
stays below 2^30: ``k = 30 - ceil(log2(W * reach))``, where W is the cohort's weight and no difference is larger than
``reach``. So n differences add up to their sum within ``n * 2^-(k + 1)``.
"""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST_REACH", "MOST_REACH", "exponent_of", "from_ring", "to_ring"]

LEAST_REACH, MOST_REACH = 2.0**-20, 2.0**20
"""The smallest and the largest reach of a parameter: beyond, numbers would leave double precision."""

_BITS = 30  # one for the sign, and one for what rounding adds


def exponent_of(weight: int, reach: float) -> int:
    """The exponent k for differences of at most ``reach`` whose weights add up to ``weight``."""
    return _BITS - math.ceil(math.log2(weight * reach))


def to_ring(values: NDArray[np.float32], weight: int, exponent: int, reach: float) -> NDArray[np.uint32]:
    """``weight`` times each of ``values`` as an element of the ring; what lies beyond ``reach`` is cut to that."""
    held = np.clip(values.astype(np.float64), -reach, reach)
    return np.rint(held * (weight * 2.0**exponent)).astype(np.int64).astype(np.uint32)


def from_ring(total: NDArray[np.uint32], exponent: int) -> NDArray[np.float64]:
    """A sum over the ring as the number that it stands for."""
    return total.astype(np.int32).astype(np.float64) * 2.0**-exponent
