"""Weighted sums in float64 of what updates keep of a tensor: ``total[kept] += weight * values``, block by block.

A tensor is seen as a matrix, its first axis against all others; a vector is one row. A few updates are added to a block
of its rows before the next block is touched, so that the sums come out of a cache, whatever the size of the model. Each
entry is added to in the order of the updates, and a product of a float32 and a whole number below 2**29, as weights are
but for stale updates', is exact in float64: neither blocks, nor how many updates go together, nor the library that
computes change a bit.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Tensor
from edge_fl.core.selection import Kept

__all__ = ["Addend", "CpuSumming", "Kernels", "Summing", "as_matrix", "matrix_kept"]

_BLOCK = 1 << 16  # entries: 512 KB of sums, which a core's own cache holds; of smaller blocks the calls cost more
_FEW = 1 << 12  # entries: where updates hold no more of a tensor, numpy is quick enough


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


class Addend(NamedTuple):
    """What one update adds to a matrix: ``weight`` times ``values``, float32, at ``rows`` x ``columns``."""

    values: NDArray[np.float32]
    rows: Kept
    columns: Kept
    weight: float


class Kernels(Protocol):
    """Loops that add to numpy's arrays quicker than numpy does.

    The sums are C-contiguous float64 ``[R, S]``, rows and columns int64, and values C-contiguous float32.
    """

    def add_rows(self, total: NDArray[Any], rows: NDArray[Any], values: NDArray[Any], weight: float, /) -> None:
        """``total[rows] += weight * values``."""

    def add_entries(
        self,
        total: NDArray[Any],
        rows: NDArray[Any],
        columns: NDArray[Any],
        values: NDArray[Any],
        weight: float,
        /,
    ) -> None:
        """``total[rows x columns] += weight * values``."""

    def add_products(self, total: NDArray[Any], left: NDArray[Any], right: NDArray[Any], /) -> None:
        """``total += left.T @ right``, all float64, on one thread."""


class Summing:
    """Adds updates to sums that live where an array library has them, such as on CUDA.

    Parameters
    ----------
    xp
        An array API namespace.
    device
        Where the sums live, as ``xp`` names devices.
    """

    def __init__(self, xp: Any, device: Any) -> None:
        self.xp, self._device = xp, device

    def zeros(self, shape: tuple[int, int]) -> Any:
        """Where sums begin. numpy's memory is in huge pages where there are any, which the system hands out faster."""
        return self.array(np.zeros(shape))

    def array(self, values: NDArray[Any]) -> Any:
        """``values`` where the sums live."""
        return self.xp.asarray(values, device=self._device)

    def blocks(self, matrix: Any) -> Iterator[slice]:
        """The rows of sums ``[R, S]``, as many at a time as are best added to together: all of them."""
        return iter([slice(0, matrix.shape[0])])

    def product(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> Any:
        """``left.T @ right`` where the sums live: ``[K, R]`` and ``[K, S]`` float64 to ``[R, S]``."""
        return self.array(left).T @ self.array(right)

    def add(self, total: Any, addends: Sequence[Addend]) -> None:
        """Add all ``addends``, in this order, to ``total`` ``[R, S]``."""
        for block in self.blocks(total):
            for addend in addends:
                self._add(*_cut(total, addend, block))

    def _add(self, total: Any, addend: Addend) -> None:
        values, rows, columns, weight = addend
        index = np.ix_(rows, columns) if rows is not None and columns is not None else (rows, columns)
        kept = tuple(slice(None) if axis is None else self.array(axis) for axis in index)
        total[kept] += self.array(values.astype(np.float64) * weight)


class CpuSumming(Summing):
    """Adds updates to numpy's arrays, as many rows at a time as a cache holds.

    Parameters
    ----------
    kernels
        Gives what adds to larger tensors, when the first of them comes, or None for numpy alone.
    """

    def __init__(self, kernels: Callable[[], Kernels | None] = lambda: None) -> None:
        super().__init__(np, "cpu")
        self._open = kernels

    def array(self, values: NDArray[Any]) -> NDArray[Any]:
        """Themselves."""
        return values

    def blocks(self, matrix: NDArray[np.float64]) -> Iterator[slice]:
        """The rows of sums ``[R, S]``, as many at a time as a cache holds."""
        rows, columns = matrix.shape
        step = max(_BLOCK // max(columns, 1), 1)
        return (slice(start, min(start + step, rows)) for start in range(0, rows, step))

    def product(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> Any:
        """``left.T @ right``: ``[K, R]`` and ``[K, S]`` float64 to ``[R, S]``."""
        kernels = self._kernels(left.shape[1] * right.shape[1])
        if kernels is None:
            return super().product(left, right)
        total = np.zeros((left.shape[1], right.shape[1]))
        kernels.add_products(total, left, right)
        return total

    def add(self, total: NDArray[np.float64], addends: Sequence[Addend]) -> None:
        """Add all ``addends``, in this order, to ``total`` ``[R, S]``."""
        kernels = self._kernels(max((addend.values.size for addend in addends), default=0))
        if kernels is None:
            super().add(total, addends)
            return
        for block in self.blocks(total):
            for addend in addends:
                _add_by(kernels, *_cut(total, addend, block))

    def _kernels(self, size: int) -> Kernels | None:
        return self._open() if size > _FEW else None


def _add_by(kernels: Kernels, total: NDArray[np.float64], addend: Addend) -> None:
    rows = np.arange(len(addend.values)) if addend.rows is None else addend.rows
    values = np.require(addend.values, np.float32, ["C", "A"])  # of statistics that follow a compressor's bytes
    if addend.columns is None:
        kernels.add_rows(total, rows, values, addend.weight)
    else:
        kernels.add_entries(total, rows, addend.columns, values, addend.weight)


def _cut(total: Any, addend: Addend, block: slice) -> tuple[Any, Addend]:
    """The part of the sums, and of what is added to them, that is in a block of rows."""
    values, rows, columns, weight = addend
    if rows is None:
        return total[block], Addend(values[block], None, columns, weight)
    own = _within(block, rows)
    return total, Addend(values[own], rows[own], columns, weight)


def _within(block: slice, rows: NDArray[np.int64]) -> slice:
    """Where those of ``rows`` are that a block has."""
    if len(rows) == 0 or block.start <= rows[0] <= rows[-1] < block.stop:
        return slice(None)
    return slice(*np.searchsorted(rows, (block.start, block.stop)))
