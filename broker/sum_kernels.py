"""Loops over entries, compiled for this machine's processor: each reads an update once, where numpy and torch would
cast, weight, index and add in passes of their own.

Compiled when this is first imported, and kept in numba's cache for later processes. They let go of the GIL, for the
session's network thread has work meanwhile.
"""

from collections.abc import Callable
from typing import Any

import numba
from numba import types

__all__ = ["add_entries", "add_products", "add_rows"]

_SUMS = types.Array(types.float64, 2, "C")
_WEIGHTS = types.Array(types.float64, 2, "A", readonly=True)
_VALUES = types.Array(types.float32, 2, "C", readonly=True)
_INDEX = types.Array(types.int64, 1, "C", readonly=True)


def _compiled(*arguments: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def decorate(loop: Callable[..., None]) -> Callable[..., None]:
        signature = types.void(*arguments)
        try:
            compiled: Callable[..., None] = numba.njit(signature, nogil=True, cache=True)(loop)
        except Exception:  # no folder for a cache, a full disk, a file that a power cut left half written
            compiled = numba.njit(signature, nogil=True)(loop)
        return compiled

    return decorate


@_compiled(_SUMS, _INDEX, _VALUES, types.float64)
def add_rows(total: Any, rows: Any, values: Any, weight: float) -> None:
    """``total[rows] += weight * values``: float64 ``[R, S]``, int64 ``[r]``, float32 ``[r, S]``."""
    for i in range(values.shape[0]):
        row, added = total[rows[i]], values[i]
        for j in range(len(added)):
            row[j] += weight * added[j]


@_compiled(_SUMS, _INDEX, _INDEX, _VALUES, types.float64)
def add_entries(total: Any, rows: Any, columns: Any, values: Any, weight: float) -> None:
    """``total[rows x columns] += weight * values``: float64 ``[R, S]``, int64 ``[r]``, ``[c]``, float32 ``[r, c]``."""
    for i in range(values.shape[0]):
        row, added = total[rows[i]], values[i]
        for j in range(len(added)):
            row[numba.uint64(columns[j])] += weight * added[j]  # no negative index is to be looked for


@_compiled(_SUMS, _WEIGHTS, _WEIGHTS)
def add_products(total: Any, left: Any, right: Any) -> None:
    """``total += left.T @ right``: float64 ``[R, S]``, ``[K, R]`` and ``[K, S]``, on one thread."""
    for k in range(left.shape[0]):
        for i in range(left.shape[1]):
            weight = left[k, i]
            if weight != 0:
                row, added = total[i], right[k]
                for j in range(len(added)):
                    row[j] += weight * added[j]
