"""Torch eager as anyone would train the model: an nn.Module of the width in question, autograd, torch.optim.SGD."""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from edge_fl.core.batch import Batch
from edge_fl.core.selection import Weights

__all__ = ["eager_step", "sized"]


def sized(model: nn.Module, tensors: Weights) -> nn.Module:
    """A copy of ``model`` whose parameters and buffers are ``tensors``, of whatever width they are."""
    model = copy.deepcopy(model)
    for name, array in tensors.items():
        path, _, own = name.rpartition(".")
        module, value = model.get_submodule(path), torch.tensor(array)
        setattr(module, own, nn.Parameter(value) if own in module._parameters else value)
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.input_size = module.get_parameter("weight_ih_l0").shape[1]
            module.hidden_size = module.get_parameter("weight_hh_l0").shape[1]
    return model


def eager_step(model: nn.Module, batch: Batch, *, lr: float) -> Callable[[], object]:
    """One SGD step of the mean cross entropy over the samples, and over the positions where there are some."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x, y = torch.from_numpy(batch.x), torch.from_numpy(batch.y)

    def step() -> None:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step
