"""What compressors share: which entries are largest, and checks of what is compressed."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import ConfigError, FrameError, RunError
from edge_fl.wire.context import Vector

__all__ = [
    "LARGEST",
    "add",
    "check_finite",
    "check_ratio",
    "check_scale",
    "kept_count",
    "largest",
]

LARGEST = np.finfo(np.float32).max


def check_ratio(ratio: float, compressor: str) -> None:
    """Refuse a share of entries to keep that is outside (0, 1]: ConfigError."""
    if not 0 < ratio <= 1:
        raise ConfigError(f"{compressor} keeps a share of the entries in (0, 1], not {ratio}.")


def check_finite(values: Vector) -> None:
    """Refuse differences that have diverged, before they are remembered for ever: RunError."""
    if not np.isfinite(values).all():
        raise RunError("The update holds a NaN or an infinity, so it is not sent.")


def add(a: Vector, b: Vector) -> Vector:
    """``[n]`` float32 ``a + b``; a sum too large for float32 is its largest number, so that it can be sent."""
    with np.errstate(over="ignore"):
        total: Vector = np.clip(a + b, -LARGEST, LARGEST)
    return total


def kept_count(ratio: float, n: int) -> int:
    """How many of ``n`` entries a ``ratio`` in (0, 1] keeps: the nearest number, but at least one of any."""
    return min(n, max(1, round(ratio * n)))


def largest(values: NDArray[np.floating[Any]], k: int) -> NDArray[np.int64]:
    """The positions of the ``k`` entries of largest magnitude, ascending; of equal ones the first."""
    if k == 0:
        return np.empty(0, dtype=np.int64)
    magnitudes = np.abs(values)
    threshold = np.partition(magnitudes, len(values) - k)[len(values) - k]
    above = np.flatnonzero(magnitudes > threshold)
    equal = np.flatnonzero(magnitudes == threshold)[: k - len(above)]
    return np.sort(np.concatenate([above, equal]))


def check_scale(scale: float) -> None:
    """Refuse a magnitude off the wire that is negative, infinite or no number."""
    if not (math.isfinite(scale) and scale >= 0):
        raise FrameError("values", f"The compressed values have the magnitude {scale}.")
