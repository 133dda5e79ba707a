"""numpy to torch and back."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from edge_fl.runtimes.base import Batch
from edge_fl.selection import Weights

__all__ = ["arrays_of", "scalars", "tensors_of"]


def tensors_of(names: list[str], weights: Weights, batch: Batch) -> list[torch.Tensor]:
    """The weights in the order of ``names``, then x, y and sample weight; copied only where torch must."""
    arrays = [*(weights[name] for name in names), batch.x, batch.y, batch.weight]
    return [torch.from_numpy(np.require(array, requirements=["C", "W"])) for array in arrays]


def scalars(lr: float, scale: float) -> list[torch.Tensor]:
    """The two 0-d float32 inputs that follow."""
    return [torch.tensor(lr), torch.tensor(scale)]


def arrays_of(outputs: Sequence[torch.Tensor]) -> list[NDArray[np.float32]]:
    """The outputs as arrays; torch gives new tensors on every call."""
    return [output.numpy() for output in outputs]
