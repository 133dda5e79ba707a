"""Weighted sums in float64 of what updates keep of a tensor: ``total[kept] += weight * values``, block by block.

A tensor is seen as a matrix, its first axis against all others; a vector is one row. A few updates are added to a block
of its rows before the next block is touched, so that the sums come out of a cache, whatever the size of the model. Each
entry is added to in the order of the updates, and a product of a float32 and a whole number below 2**29, as weights are
but for stale updates', is exact in float64: neither blocks, nor how many updates go together, nor the library that
computes change a bit.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_fl.layout import Tensor
from edge_fl.selection import Kept

__all__ = ["Addend", "Summing", "as_matrix", "blocks", "matrix_kept", "matrix_shape"]

_BLOCK = 1 << 19  # entries: 4 MB of sums, which a cache still holds; of smaller blocks the calls cost more
_FEW = 1 << 12  # entries, which numpy has added before torch has begun


def matrix_shape(tensor: Tensor) -> tuple[int, int]:
    """The shape ``[R, S]`` of ``tensor`` as a matrix."""
    first, *rest = tensor.shape if len(tensor.shape) > 1 else (1, *tensor.shape)
    return first, math.prod(rest)


def as_matrix(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """A tensor, or what is kept of one, as a matrix."""
    first, *rest = values.shape if values.ndim > 1 else (1, *values.shape)
    return values.reshape(first, math.prod(rest))


def matrix_kept(tensor: Tensor, axes: Sequence[Kept]) -> tuple[Kept, Kept]:
    """The rows and the columns that are kept of ``tensor`` as a matrix, where ``axes`` are kept of the tensor."""
    first, *rest = axes if len(axes) > 1 else (None, *axes)
    if all(kept is None for kept in rest):
        return first, None
    if len(rest) == 1:
        return first, rest[0]
    inner = tensor.shape[1:]
    whole = [np.arange(n) if kept is None else kept for n, kept in zip(inner, rest, strict=True)]
    return first, np.ravel_multi_index(np.ix_(*whole), inner).reshape(-1)


def blocks(matrix: Any) -> Iterator[slice]:
    """The rows of a matrix ``[R, S]``, as many at a time as a cache holds."""
    rows, columns = matrix.shape
    step = max(_BLOCK // max(columns, 1), 1)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


class Addend(NamedTuple):
    """What one update adds to a matrix: ``weight`` times ``values``, float32, at ``rows`` x ``columns``."""

    values: NDArray[np.float32]
    rows: Kept
    columns: Kept
    weight: float


class Summing:
    """Adds updates to sums: numpy arrays on a CPU, else those of a namespace.

    Parameters
    ----------
    xp
        An array API namespace. On a CPU, torch's lends its kernels, which add to many rows, columns or entries several
        times as fast as numpy does.
    device
        Where the sums live, as ``xp`` names devices.
    """

    def __init__(self, xp: Any, device: Any) -> None:
        self._near = device == "cpu"
        self.xp = np if self._near else xp
        self._kernels = xp if self._near and hasattr(xp, "scatter_add") else None
        self._device = device
        self._scratch = np.empty(0)

    def zeros(self, shape: tuple[int, int]) -> Any:
        """Where sums begin. numpy's memory is in huge pages where there are any, which the system hands out faster."""
        return self.array(np.zeros(shape))

    def array(self, values: NDArray[Any]) -> Any:
        """``values`` where the sums live; themselves on a CPU."""
        return values if self._near else self.xp.asarray(values, device=self._device)

    def product(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> Any:
        """``left.T @ right`` where the sums live. numpy's would take as many threads as there are cores."""
        if self._kernels is not None:
            return np.asarray(self._kernels.asarray(left).T @ self._kernels.asarray(right))
        return self.array(left).T @ self.array(right)

    def add(self, total: Any, addends: Sequence[Addend]) -> None:
        """Add all ``addends``, in this order, to ``total`` ``[R, S]``."""
        for block in blocks(total):
            for values, rows, columns, weight in addends:
                if rows is None:
                    self._add(total[block], None, columns, values[block], weight)
                else:
                    own = _within(block, rows)
                    self._add(total, rows[own], columns, values[own], weight)

    def _add(self, total: Any, rows: Kept, columns: Kept, values: NDArray[np.float32], weight: float) -> None:
        """``total[rows, columns] += weight * values``."""
        moved = self._float64(values)
        if self._kernels is not None and values.size > _FEW:
            tensor = self._kernels.asarray
            self._add_in_torch(tensor(total), rows, columns, tensor(moved), weight)
        else:
            moved *= weight
            total[self._index(rows, columns)] += self.array(moved)

    def _float64(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """A copy of ``values`` in memory that the next one will take."""
        if len(self._scratch) < values.size:
            self._scratch = np.empty(max(values.size, _BLOCK))
        copy = self._scratch[: values.size].reshape(values.shape)
        np.copyto(copy, values)
        return copy

    def _index(self, rows: Kept, columns: Kept) -> tuple[Any, ...]:
        index = np.ix_(rows, columns) if rows is not None and columns is not None else (rows, columns)
        return tuple(slice(None) if kept is None else self.array(kept) for kept in index)

    def _add_in_torch(self, total: Any, rows: Kept, columns: Kept, moved: Any, weight: float) -> None:
        """``total[rows, columns] += weight * moved``, on the very memory of numpy's arrays; may write to ``moved``."""
        assert self._kernels is not None
        tensor = self._kernels.asarray
        if rows is None and columns is None:
            total.add_(moved, alpha=weight)
        elif columns is None:
            total.index_add_(0, tensor(rows), moved, alpha=weight)
        elif rows is None:
            moved *= weight
            total.scatter_add_(1, tensor(columns).expand(moved.shape), moved)
        else:
            moved *= weight
            places = rows[:, np.newaxis] * total.shape[1] + columns
            total.view(-1).scatter_add_(0, tensor(places).view(-1), moved.view(-1))


def _within(block: slice, rows: NDArray[np.int64]) -> slice:
    """Where those of ``rows`` are that a block has."""
    if len(rows) == 0 or block.start <= rows[0] <= rows[-1] < block.stop:
        return slice(None)
    return slice(*np.searchsorted(rows, (block.start, block.stop)))
