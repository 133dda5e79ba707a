"""Units of a module that is followed as one operation: which indices of its tensors are theirs, as it says itself."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["UnitAxes"]


@dataclass(frozen=True)
class UnitAxes:
    """The units of one layer.

    ``owners`` says for an axis of a parameter which unit owns each of its indices, int64, -1 for none; ``own`` are
    the axes of the units' own rows, a subset of its keys. The units' outputs are ``outputs`` of the last axis of
    what the module gives, or of no part of it when only the module itself reads them (None). With ``is_layer``
    the units are the outputs of the layer ``name`` in the module, and methods scale them.
    """

    name: str
    size: int
    owners: dict[tuple[str, int], NDArray[np.int64]]
    own: frozenset[tuple[str, int]]
    outputs: slice | None
    is_layer: bool = False
