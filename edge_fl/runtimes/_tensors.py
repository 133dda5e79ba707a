"""numpy to torch and back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["arrays_of", "tensors_of"]


def tensors_of(arrays: Sequence[NDArray[Any]]) -> list[torch.Tensor]:
    """The arrays as tensors; copied only where torch must."""
    return [torch.from_numpy(np.require(array, requirements=["C", "W"])) for array in arrays]


def arrays_of(outputs: Sequence[torch.Tensor]) -> list[NDArray[np.float32]]:
    """The outputs as arrays; torch gives new tensors on every call."""
    return [output.numpy() for output in outputs]
