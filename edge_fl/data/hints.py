"""What makes data fit a model that do not, for the end of a sentence that refuses them."""

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import Manifest

__all__ = ["channels_first", "targets_that_fit"]

_Shape = tuple[int, ...]
_ANY = "--data that fits"


def channels_first(given: _Shape, taken: _Shape) -> str:
    """What to give in place of images ``[H, W, C]`` of shape ``given``; nothing where ``taken`` are no such images."""
    last = len(given) > 1 and given != taken and (given[-1], *given[:-1]) == taken
    return "channels first, as np.moveaxis(x, -1, 1) puts them" if last else ""


def targets_that_fit(y: NDArray[np.generic], manifest: Manifest) -> str:
    """What to give in place of targets ``y``, ``[n, ...]``, of another shape or dtype than the model's."""
    given, taken, classes = y.shape[1:], manifest.target.shape, manifest.target.dtype == "int64"
    if given == taken:
        if not classes:
            return "them as floats, y.astype('float32')"
        whole = bool(y.size) and np.array_equal(y, np.rint(y))
        return "them as whole numbers, y.astype('int64')" if whole else _ANY
    usual = {
        (1, *taken): "them without the axis of one, y[:, 0]",
        (*taken, 1): "them without the axis of one, y[..., 0]",
    }
    if classes:
        usual[manifest.classes, *taken] = "classes in place of one-hot vectors, y.argmax(1)"
        usual[*taken, manifest.classes] = "classes in place of one-hot vectors, y.argmax(-1)"
    return usual.get(given, _ANY)
