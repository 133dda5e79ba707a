"""A batch of samples, as programs take it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEFT_OUT", "Batch"]

LEFT_OUT = -100
"""The target of a position that has none, as torch and Hugging Face write it."""


@dataclass(frozen=True)
class Batch:
    """One batch: ``x`` ``[B, ...]`` and ``y`` ``[B, ...]`` as the manifest's input and target say, ``weight`` ``[B]``
    float32 (0 on padding).
    """

    x: NDArray[Any]
    y: NDArray[Any]
    weight: NDArray[np.float32]
