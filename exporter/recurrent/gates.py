"""What the layers share: gate blocks, and the states before each step."""

import torch
from torch import Tensor

from exporter.recurrent.loop import Tensors

__all__ = ["before", "flat", "gate_blocks", "gate_weights"]


def gate_blocks(tensor: Tensor, gates: int, units: int) -> Tensors:
    """The blocks of ``units`` of the last axis, ``[..., gates * units]``."""
    return tensor.reshape(*tensor.shape[:-1], gates, units).unbind(-2)


def gate_weights(weight: Tensor, gates: int) -> Tensors:
    """Of a recurrent weight ``[gates * H, H]``, for each gate what a state ``[B, H]`` is multiplied by, ``[H, H]``."""
    return tuple(
        block.t().contiguous() for block in weight.reshape(gates, weight.shape[1], weight.shape[1]).unbind(0)
    )


def before(initial: Tensor, states: Tensor) -> Tensor:
    """The state that each of ``states`` ``[T, B, H]`` came from."""
    return torch.cat([initial.unsqueeze(0), states[:-1]])


def flat(sequence: Tensor) -> Tensor:
    """Time and batch as one axis, ``[T * B, ...]``."""
    return sequence.flatten(0, 1)
