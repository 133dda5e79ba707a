"""BatchNorm statistics of each width (FjORD, appendix on CIFAR-10): a statistic is ``[W, C]`` in place of ``[C]``.

Its first axis, free in the layout, has a row for each of the manifest's ``statistic_widths``, so that frames, patterns,
gathering and weight files need to know nothing of it. A step writes, and an evaluation reads, the row of one width;
programs are told which by the input ``width`` ``[W]``, 1 for that row and 0 for the others.

Whoever trains first units of a width (FjORD, HeteroFL) has the row nearest to that width. Every other pattern has that
of the full model: its statistics are for evaluating the full model, as one set of them is. A run need not train every
row (FjORD without its full width, FedAvg none but that), so whoever evaluates asks :func:`trained_width` for one.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Layout, Segment, Tensor
from edge_fl.core.pattern import Pattern, Prefix
from edge_fl.core.selection import Weights

__all__ = ["one_hot", "row_at", "row_weights", "trained_width", "width_of", "with_rows", "without_rows"]

_FULL = 1000


def width_of(pattern: Pattern) -> int:
    """The width, in thousandths, whose statistics a step under ``pattern`` belongs to."""
    return pattern.origin.width if isinstance(pattern.origin, Prefix) else _FULL


def row_at(widths: Sequence[int], width: int) -> int:
    """The row of the one of ``widths`` nearest to ``width`` (thousandths), the wider of two."""
    return min(range(len(widths)), key=lambda row: (abs(widths[row] - width), -widths[row]))


def one_hot(widths: Sequence[int], width: int) -> NDArray[np.float32]:
    """What programs take as ``width``: ``[W]``, 1 at :func:`row_at`."""
    chosen = np.zeros(len(widths), dtype=np.float32)
    chosen[row_at(widths, width)] = 1.0
    return chosen


def with_rows(layout: Layout, rows: int) -> Layout:
    """``layout`` with a first axis of ``rows`` for each statistic."""
    axis = (Segment(None, inner=rows),)

    def widened(tensor: Tensor) -> Tensor:
        shape, axes = (rows, *tensor.shape), ((axis, *tensor.rows), (axis, *tensor.units))
        return msgspec.structs.replace(tensor, shape=shape, rows=axes[0], units=axes[1])

    tensors = tuple(widened(t) if t.role == "statistic" else t for t in layout.tensors)
    return msgspec.structs.replace(layout, tensors=tensors)


def without_rows(layout: Layout) -> Layout:
    """The layout that :func:`with_rows` was given; any other as it is."""

    def narrowed(tensor: Tensor) -> Tensor:
        return msgspec.structs.replace(
            tensor, shape=tensor.shape[1:], rows=tensor.rows[1:], units=tensor.units[1:]
        )

    tensors = tuple(narrowed(t) if t.per_width else t for t in layout.tensors)
    return msgspec.structs.replace(layout, tensors=tensors)


def row_weights(layout: Layout, weights: Weights, widths: Sequence[int], width: int) -> Weights:
    """Full tensors by the layout :func:`without_rows`: of each statistic with rows, that of ``width`` (thousandths)."""
    return {
        t.name: weights[t.name][row_at(widths, width)] if t.per_width else weights[t.name] for t in layout.tensors
    }


def trained_width(layout: Layout, start: Weights, weights: Weights, widths: Sequence[int], width: int) -> int:
    """The width (thousandths) whose statistics suit a model of ``width`` best: the nearest of those that were trained.

    Parameters
    ----------
    start, weights
        Full tensors by name before training, of which those with rows are read, and after it.
    widths
        Those of the rows.

    Returns
    -------
    The one of ``widths`` nearest to ``width`` whose row has another bit in ``weights`` than in ``start``; ``width``
    itself where none has, or there are no rows.
    """
    rowed = [tensor.name for tensor in layout.tensors if tensor.per_width]
    trained = [
        each
        for row, each in enumerate(widths)
        if any(weights[name][row].tobytes() != start[name][row].tobytes() for name in rowed)
    ]
    return trained[row_at(trained, width)] if trained else width
