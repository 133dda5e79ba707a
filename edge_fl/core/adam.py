"""Adam (Kingma and Ba, 2015, Algorithm 1) in numpy, as torch.optim.Adam computes it."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["adam"]

_Array = TypeVar("_Array", NDArray[np.float32], NDArray[np.float64])


def adam(
    gradient: _Array,
    first: _Array,
    second: _Array,
    *,
    number: float,
    lr: float,
    betas: tuple[float, float],
    eps: float,
) -> tuple[_Array, _Array, _Array]:
    """What a step takes off the weights, and the two moments anew; the bias corrections are taken together.

    Parameters
    ----------
    gradient, first, second
        Of one shape; the moments (torch's ``exp_avg`` and ``exp_avg_sq``) are zero at first, and not written to.
    number
        Which step it is, from 1 (Adam's t).
    """
    beta1, beta2 = betas
    first = beta1 * first + (1 - beta1) * gradient
    second = beta2 * second + (1 - beta2) * (gradient * gradient)
    size, root = lr / (1 - beta1**number), (1 - beta2**number) ** 0.5
    return size * (first / (np.sqrt(second) / root + eps)), first, second
