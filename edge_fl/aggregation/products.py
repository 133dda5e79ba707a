"""Low-rank adapters averaged as products, B A, and divided anew: FlexLoRA (Bai et al., 2024), section 3.

The mean of adapters is not the adapter of the mean: ``mean(B) mean(A)`` is not ``mean(B A)``. So what K clients with
ranks r_k add to a frozen layer is averaged as it acts, ``W = sum_k w_k B_k A_k / sum_k w_k``, and the nearest product
of the full rank r comes from its singular values: ``W = U S V^T``, B = U S and A = V^T of the r largest. The first k
ranks of those are the nearest product of rank k, which a client that affords k ranks then trains.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from edge_fl.aggregation.bounds import WHOLE, Clip
from edge_fl.aggregation.part import Part
from edge_fl.aggregation.rules import Accumulator, Rule
from edge_fl.aggregation.spool import Spool
from edge_fl.aggregation.sums import as_matrix, matrix_kept
from edge_fl.core.adapters import Adapter, adapters_of
from edge_fl.core.divergence import max_change
from edge_fl.core.errors import RunError
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.server_half import Change

__all__ = ["ProductAccumulator", "divided"]

_Matrix = NDArray[np.float64]

_NOTHING = 1e-7  # of the largest singular value: what float32 cannot tell from 0


class ProductAccumulator:
    """Takes the place of :class:`edge_fl.aggregation.rules.Accumulator` where adapters are averaged as products.

    All else is averaged by the rule, entry by entry. Updates wait on disk, and one adapter of all of them is in memory
    at a time: all ranks, or where these are more than W has, W itself.

    Parameters
    ----------
    layout
        The model's.
    rule
        What is made of all other tensors, and what a client counts.
    spool
        Where updates are kept until :meth:`change`.
    sums
        Makes the plain sums of the other tensors, which are those of the layout that it is given.
    """

    averaged = 0
    """Rows with too few holders for a robust rule: there is none."""

    def __init__(self, layout: Layout, rule: Rule, spool: Spool, sums: Callable[[Layout], Accumulator]) -> None:
        self._layout, self._adapters, self._rule, self._spool = layout, adapters_of(layout), rule, spool
        factors = {tensor.name for adapter in self._adapters.values() for tensor in adapter}
        others = tuple(tensor for tensor in layout.tensors if tensor.name not in factors)
        self._plain = sums(Layout(layout.blocks, others))
        self._parts: list[Part] = []

    def add(
        self, selection: Selection, values: Weights, samples: int, discount: float = 1, *, clip: Clip = WHOLE
    ) -> None:
        """As :meth:`edge_fl.aggregation.rules.Accumulator.add`; ``values`` are written to disk."""
        self._spool.append(values)
        self._parts.append(Part(selection, samples, self._rule.weight(samples), discount, clip))
        self._plain.add(selection, values, samples, discount, clip=clip)

    def change(self, weights: Weights) -> Change:
        """As :meth:`edge_fl.aggregation.rules.Accumulator.change`.

        Raises
        ------
        RunError
            When an adapter moves farther than training does: a product moves by the square of what its factors do.
        """
        try:
            change = self._plain.change(weights)
            if not self._parts:
                change |= {tensor.name: np.zeros(tensor.shape) for a in self._adapters.values() for tensor in a}
                return change
            farthest = max_change(self._layout, weights)
            for layer, adapter in self._adapters.items():
                factors = divided(self._terms(adapter, weights), _old(adapter.down, weights))
                for tensor, new in zip(adapter, factors, strict=True):
                    change[tensor.name] = (new - _old(tensor, weights)).reshape(tensor.shape)
                    if not np.abs(change[tensor.name]).max(initial=0) <= farthest:
                        raise RunError(
                            f"The adapter of '{layer}' diverged: lower the step size, or bound updates (--norm-bound)."
                        )
            return {tensor.name: change[tensor.name] for tensor in self._layout.tensors}
        finally:
            self._spool.close()

    def _terms(self, adapter: Adapter, weights: Weights) -> Iterator[tuple[_Matrix, _Matrix]]:
        """``[r_k, in]`` and ``[out, r_k]`` of each client, whose products add up to the mean."""
        everyone = sum(part.weight for part in self._parts)
        for number, part in enumerate(self._parts):
            values = self._spool.values(number)
            down, up = (_trained(tensor, part, values, weights) for tensor in adapter)
            ranks, _ = matrix_kept(adapter.down, part.selection.axes[adapter.down.name])
            held = slice(None) if ranks is None else ranks
            yield down[held], up[:, held] * (part.weight / everyone)


def divided(terms: Iterable[tuple[_Matrix, _Matrix]], old: _Matrix) -> tuple[_Matrix, _Matrix]:
    """The A and B of rank r whose product is nearest to the sum of ``up @ down`` over ``terms``.

    A rank that the product has not keeps its row of A, and its column of B is 0: with both at 0 neither would have a
    gradient ever again.

    Parameters
    ----------
    terms
        ``[n, in]`` and ``[out, n]`` float64 each, one at least.
    old
        ``[r, in]`` float64: A as it was.

    Returns
    -------
    ``[r, in]`` and ``[out, r]`` float64. Of every row of A that is new the entry of the largest size is positive, so
    that the same product is divided alike. Both are NaN where the sum is not finite.
    """
    left, sizes, right = _singular(terms)
    down, up = old.copy(), np.zeros((len(left), len(old)))
    rank = min(len(old), int((sizes > _NOTHING * sizes.max(initial=0)).sum()))
    if not np.isfinite(sizes).all():
        return np.full_like(down, np.nan), np.full_like(up, np.nan)
    rows = right[:rank]
    signs = np.sign(rows[np.arange(rank), np.abs(rows).argmax(axis=1)])
    down[:rank] = rows * signs[:, np.newaxis]
    up[:, :rank] = left[:, :rank] * (sizes[:rank] * signs)
    return down, up


def _singular(terms: Iterable[tuple[_Matrix, _Matrix]]) -> tuple[_Matrix, _Matrix, _Matrix]:
    """U ``[out, n]``, S ``[n]`` and V^T ``[n, in]`` of the sum of ``up @ down``, made where its ranks are many.

    NaN where that is not finite, or its values are not found.
    """
    whole: _Matrix | None = None
    downs: list[_Matrix] = []
    ups: list[_Matrix] = []
    for down, up in terms:
        downs.append(down)
        ups.append(up)
        if sum(map(len, downs)) >= min(down.shape[1], len(up)):
            product = np.concatenate(ups, axis=1) @ np.concatenate(downs)
            whole = product if whole is None else whole + product
            downs, ups = [], []
    try:
        if whole is not None:
            whole = sum((up @ down for down, up in zip(downs, ups, strict=True)), whole)
            return np.linalg.svd(whole, full_matrices=False)
        left, upper = np.linalg.qr(np.concatenate(ups, axis=1))
        right, lower = np.linalg.qr(np.concatenate(downs).T)
        u, sizes, v = np.linalg.svd(upper @ lower.T)
        return left @ u, sizes, v @ right.T
    except np.linalg.LinAlgError:
        return np.empty((len(up), 1)), np.full(1, np.nan), np.empty((1, down.shape[1]))


def _trained(tensor: Tensor, part: Part, values: Weights, weights: Weights) -> _Matrix:
    """What a client made of ``tensor``, as a matrix; what it does not hold is as it was."""
    changed = np.zeros(tensor.shape)
    changed[part.selection.index(tensor)] = values[tensor.name].astype(np.float64) * part.share(tensor)
    return _old(tensor, weights) + changed.reshape(tensor.matrix)


def _old(tensor: Tensor, weights: Weights) -> _Matrix:
    return as_matrix(weights[tensor.name]).astype(np.float64)
