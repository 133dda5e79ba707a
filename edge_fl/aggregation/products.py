"""Low-rank adapters averaged as products, B A, and divided anew: FlexLoRA (Bai et al., 2024), section 3.

The mean of adapters is not the adapter of the mean: ``mean(B) mean(A)`` is not ``mean(B A)``. So what K clients with
ranks r_k add to a frozen layer is averaged as it acts, ``W = sum_k w_k B_k A_k / sum_k w_k``, and the nearest product
of the full rank r comes from its singular values: ``W = U S V^T``, B = U S and A = V^T of the r largest. The first k
ranks of those are the nearest product of rank k, which a client that affords k ranks then trains.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.aggregation.bounds import WHOLE, Clip
from edge_fl.aggregation.rules import Accumulator, Rule
from edge_fl.aggregation.spool import Spool
from edge_fl.aggregation.sums import as_matrix, matrix_kept, matrix_shape
from edge_fl.core.adapters import Adapter, adapters_of
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.server_half import Change

__all__ = ["ProductAccumulator", "divided"]

_Matrix = NDArray[np.float64]

_NOTHING = 1e-7  # of the largest singular value: what float32 cannot tell from 0


@dataclass(frozen=True)
class _Part:
    """One update besides its values."""

    selection: Selection
    weight: float
    discount: float
    clip: Clip


class ProductAccumulator:
    """Takes the place of :class:`edge_fl.aggregation.rules.Accumulator` where adapters are averaged as products.

    All else is averaged by the rule, entry by entry. Updates wait on disk, and one adapter of all of them is in memory
    at a time.

    Parameters
    ----------
    layout
        The model's.
    rule
        What is made of all other tensors, and what a client counts.
    spool
        Where updates are kept until :meth:`change`.
    sums
        Makes the plain sums of all other tensors.
    """

    averaged = 0
    """Rows with too few holders for a robust rule: there is none."""

    def __init__(self, layout: Layout, rule: Rule, spool: Spool, sums: Callable[[], Accumulator]) -> None:
        self._adapters, self._rule, self._spool = adapters_of(layout), rule, spool
        self._plain = sums()
        self._parts: list[_Part] = []

    def add(
        self, selection: Selection, values: Weights, samples: int, discount: float = 1, *, clip: Clip = WHOLE
    ) -> None:
        """As :meth:`edge_fl.aggregation.rules.Accumulator.add`; ``values`` are written to disk."""
        self._spool.append(values)
        self._parts.append(_Part(selection, float(self._rule.weight(samples)), discount, clip))
        self._plain.add(selection, values, samples, discount, clip=clip)

    def change(self, weights: Weights) -> Change:
        """As :meth:`edge_fl.aggregation.rules.Accumulator.change`."""
        try:
            change = self._plain.change(weights)
            for adapter in self._adapters.values() if self._parts else ():
                down, up = divided(*self._held(adapter, weights), _old(adapter.down, weights))
                for tensor, new in ((adapter.down, down), (adapter.up, up)):
                    change[tensor.name] = (new - _old(tensor, weights)).reshape(tensor.shape)
            return change
        finally:
            self._spool.close()

    def _held(self, adapter: Adapter, weights: Weights) -> tuple[_Matrix, _Matrix]:
        """``[R, in]`` and ``[out, R]``, whose product is the mean: the ranks of all clients, one after another."""
        everyone = sum(part.weight for part in self._parts)
        downs, ups = [], []
        for number, part in enumerate(self._parts):
            values = self._spool.values(number)
            down, up = (_trained(tensor, part, values, weights) for tensor in adapter)
            ranks, _ = matrix_kept(adapter.down, part.selection.axes[adapter.down.name])
            held = slice(None) if ranks is None else ranks
            downs.append(down[held])
            ups.append(up[:, held] * (part.weight / everyone))
        return np.concatenate(downs), np.concatenate(ups, axis=1)


def divided(downs: _Matrix, ups: _Matrix, old: _Matrix) -> tuple[_Matrix, _Matrix]:
    """The A and B of rank r whose product is nearest to ``ups @ downs``.

    A rank that the product has not keeps its row of A, and its column of B is 0: with both at 0 neither would have a
    gradient ever again.

    Parameters
    ----------
    downs, ups
        ``[R, in]`` and ``[out, R]`` float64.
    old
        ``[r, in]`` float64: A as it was.

    Returns
    -------
    ``[r, in]`` and ``[out, r]`` float64. Of every row of A that is new the entry of the largest size is positive, so
    that the same product is divided alike.
    """
    left, sizes, right = _singular(ups, downs)
    down, up = old.copy(), np.zeros((len(ups), len(old)))
    rank = min(len(old), int((sizes > _NOTHING * sizes.max(initial=0)).sum()))
    rows = right[:rank]
    signs = np.sign(rows[np.arange(rank), np.abs(rows).argmax(axis=1)])
    down[:rank] = rows * signs[:, np.newaxis]
    up[:, :rank] = left[:, :rank] * (sizes[:rank] * signs)
    return down, up


def _singular(ups: _Matrix, downs: _Matrix) -> tuple[_Matrix, _Matrix, _Matrix]:
    """U ``[out, n]``, S ``[n]`` and V^T ``[n, in]`` of ``ups @ downs``, which is not made where its ranks are few."""
    if downs.shape[0] >= min(downs.shape[1], len(ups)):
        return np.linalg.svd(ups @ downs, full_matrices=False)
    left, upper = np.linalg.qr(ups)
    right, lower = np.linalg.qr(downs.T)
    u, sizes, v = np.linalg.svd(upper @ lower.T)
    return left @ u, sizes, v @ right.T


def _trained(tensor: Tensor, part: _Part, values: Weights, weights: Weights) -> _Matrix:
    """What a client made of ``tensor``, as a matrix; what it does not hold is as it was."""
    changed = np.zeros(tensor.shape)
    share = part.discount * part.clip.of(tensor)
    changed[part.selection.index(tensor)] = values[tensor.name].astype(np.float64) * share
    return _old(tensor, weights) + changed.reshape(matrix_shape(tensor))


def _old(tensor: Tensor, weights: Weights) -> _Matrix:
    return as_matrix(weights[tensor.name]).astype(np.float64)
