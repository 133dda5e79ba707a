"""What makes data fit a model that do not, for the end of a sentence that refuses them."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.batch import LEFT_OUT
from edge_fl.core.bundle import Manifest

__all__ = ["inputs_that_fit", "labels_that_fit", "targets_that_fit"]

_Shape = tuple[int, ...]
_ANY = "data that fit"
_FIRST = 64  # samples that are looked at: a file may hold more than memory does


def inputs_that_fit(given: _Shape, taken: _Shape, *, tokens: bool = False) -> str:
    """What to give in place of samples of shape ``given``, of the model's dtype; no table has ``tokens``."""
    if len(given) == 3 and given[-1] > 1 and (given[-1], *given[:-1]) == taken:
        return "channels first, as np.moveaxis(x, -1, 1) puts them"
    if math.prod(given) == math.prod(taken):
        shape = ", ".join(map(str, (-1, *taken)))
        option = f"shape={'x'.join(map(str, taken))}"
        return f"x.reshape({shape}), of csv: and idx: {option}, where the numbers lie in that order"
    if not tokens and len(given) == len(taken) == 1 and given > taken:
        return f"{_ANY}: of a table name the {taken[0]} columns with ?features=, or leave others out with ?ignore="
    return _ANY


def targets_that_fit(y: NDArray[np.generic], manifest: Manifest) -> str:
    """What to give in place of targets ``y``, ``[n, ...]``, of another shape or dtype than the model's."""
    given, taken = y.shape[1:], manifest.target.shape
    if given == taken:
        return _of_dtype(y, manifest)
    one = {
        (1, *taken): "them without the axis of one, y[:, 0]",
        (*taken, 1): "them without the axis of one, y[..., 0]",
    }
    if given in one:
        return one[given]
    axes = {1: (manifest.classes, *taken), -1: (*taken, manifest.classes)}
    found = [axis for axis, shape in axes.items() if given == shape and _is_one_hot(y, axis)]
    if manifest.target.dtype == "int64" and found:
        return f"classes in place of one-hot vectors, y.argmax({found[-1]})"
    return _ANY


def labels_that_fit(labels: NDArray[Any], classes: int) -> str:
    """What to give in place of ``labels`` beyond ``classes``."""
    return "labels from 0, y - 1" if labels.min() == 1 and labels.max() == classes else _ANY


def _of_dtype(y: NDArray[np.generic], manifest: Manifest) -> str:
    if manifest.target.dtype == "float32":
        return "them as floats, y.astype('float32')"
    first = y[:_FIRST].astype(np.float64)
    are_classes = ((first >= 0) & (first < manifest.classes) & (first == np.floor(first))) | (first == LEFT_OUT)
    return "them as whole numbers, y.astype('int64')" if y.size and are_classes.all() else _ANY


def _is_one_hot(y: NDArray[np.generic], axis: int) -> bool:
    first = y[:_FIRST].astype(np.float64)
    return bool(np.isin(first, (0, 1)).all() and (first.sum(axis) == 1).all())
