"""A batch of samples, as programs take it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Batch"]


@dataclass(frozen=True)
class Batch:
    """One batch: ``x`` ``[B, ...]`` and ``y`` ``[B, ...]`` as the manifest's input and target say, ``weight`` ``[B]``
    float32 (0 on padding).
    """

    x: NDArray[Any]
    y: NDArray[Any]
    weight: NDArray[np.float32]
