"""How far one client may move a model.

Training that diverges gives huge numbers some steps before it gives NaN, and the mean of a round is ruined by either.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Layout

__all__ = ["LEAST_MAX_CHANGE", "farthest", "max_change"]

LEAST_MAX_CHANGE = 1000.0
"""What :func:`max_change` is at least, whatever the model."""


def max_change(layout: Layout, weights: Mapping[str, NDArray[np.float32]]) -> float:
    """The most by which a round may change any parameter of a model, whose full tensors are ``weights``.

    A thousand times its largest weight, and at least ``LEAST_MAX_CHANGE``. No training that learns anything comes near.
    Statistics go as far as the data do, and are not looked at.
    """
    return LEAST_MAX_CHANGE * max(1.0, *(_largest(weights[tensor.name]) for tensor in layout.parameters))


def farthest(layout: Layout, changes: Mapping[str, NDArray[np.float32]]) -> tuple[str, float]:
    """The parameter that has the largest of ``changes``, which are full or what is kept, by name; and its size.

    One that holds a NaN is the farthest, and its size is NaN.
    """
    sizes = {tensor.name: _largest(changes[tensor.name]) for tensor in layout.parameters}
    name = max(sizes, key=lambda each: (math.isnan(sizes[each]), sizes[each]))
    return name, sizes[name]


def _largest(values: NDArray[np.float32]) -> float:
    """The largest magnitude, of none 0, and NaN if there is one; without memory for all of them."""
    return max(float(values.max()), -float(values.min())) if values.size else 0.0
