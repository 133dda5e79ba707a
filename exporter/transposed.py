"""Hugging Face's ``Conv1D``, of GPT-2: a linear layer whose weight is ``[inputs, outputs]``."""

from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from exporter.unit_axes import UnitAxes

__all__ = ["TransposedLinear", "is_transposed", "transposed_axes"]


class TransposedLinear(nn.Module):
    """``x W + b`` with W ``[inputs, outputs]``; it takes its sizes from its weights."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        weight, bias = module.weight, module.bias
        assert isinstance(weight, nn.Parameter)
        assert isinstance(bias, nn.Parameter)
        self.weight, self.bias = weight, bias
        self.train(module.training)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``."""
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.reshape(*x.shape[:-1], self.weight.shape[1])


def is_transposed(module: nn.Module) -> TypeGuard[TransposedLinear]:
    """Whether it is Hugging Face's, or ours in its place."""
    if isinstance(module, TransposedLinear):
        return True
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    named = type(module).__name__ == "Conv1D" and hasattr(module, "nf")
    return named and isinstance(weight, nn.Parameter) and weight.dim() == 2 and isinstance(bias, nn.Parameter)


def transposed_axes(module: TransposedLinear, name: str) -> UnitAxes:
    """Its outputs as units; ``name`` is the module's in the model."""
    outputs = module.weight.shape[1]
    owners = {(f"{name}.weight", 1): np.arange(outputs), (f"{name}.bias", 0): np.arange(outputs)}
    return UnitAxes(name, outputs, owners, frozenset(owners), slice(0, outputs))
