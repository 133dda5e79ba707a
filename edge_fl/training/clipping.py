"""What makes a client's update private: its norm is bounded, and with local privacy noise is added."""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.secret_draws import SecretStream
from edge_fl.core.selection import Selection, Weights

__all__ = ["clipped", "noised", "norm_of"]

_Delta = dict[str, NDArray[np.float32]]
_ROUNDING = 2.0**-22  # each entry is rounded by up to 2^-24 of itself, and the norm stays within the bound


def norm_of(selection: Selection, kept: Weights) -> float:
    """The L2 norm of the parameters among ``kept`` entries, summed in float64."""
    squares = (np.square(kept[t.name], dtype=np.float64).sum() for t in selection.layout.parameters)
    return math.sqrt(sum(map(float, squares)))


def clipped(selection: Selection, delta: Weights, most: float) -> tuple[_Delta, bool]:
    """Kept differences, whose parameters have an L2 norm of ``most`` at most (McMahan et al. 2018, eq. (1)).

    BatchNorm's statistics do not change: no norm bounds them well. The second result says whether the update was
    within the norm before.
    """
    norm = norm_of(selection, delta)
    factor = 1.0 if norm <= most else (1 - _ROUNDING) * most / norm
    changed = {
        tensor.name: np.multiply(delta[tensor.name], factor, dtype=np.float64).astype(np.float32)
        for tensor in selection.layout.parameters
    }
    still = {t.name: np.zeros_like(delta[t.name]) for t in selection.layout.statistics}
    return changed | still, norm <= most


def noised(selection: Selection, delta: Weights, deviation: float, key: bytes) -> _Delta:
    """The kept differences ``delta`` with Gaussian noise of ``deviation`` on each entry of a parameter.

    The noise is keyed by ``key`` (a secret of the device, with the round) and by the update itself. A device that does
    a task again sends the same bytes, so nobody learns more by asking twice; another update has other noise.
    """
    digest, result = hashlib.sha256(key), dict(delta)
    for tensor in selection.layout.parameters:
        digest.update(delta[tensor.name].tobytes())
    stream = SecretStream(digest.digest())
    for tensor in selection.layout.parameters:
        entries = delta[tensor.name]
        noise = deviation * stream.normal(entries.size).reshape(entries.shape)
        result[tensor.name] = (entries + noise).astype(np.float32)
    return result
