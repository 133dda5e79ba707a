"""Models in what torch wraps around them for speed."""

import torch
from torch import nn

from edge_fl.core.errors import ModelError

__all__ = ["unwrapped"]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model within ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel``; any other as it is.

    Raises ModelError for a model of ``torch.jit``, whose forward is no Python any more.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            "A model of torch.jit cannot be traced again: give the nn.Module that was scripted or traced."
        )
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    compiled = getattr(model, "_orig_mod", None)  # torch.compile's own class costs the import of its compiler
    return unwrapped(compiled) if isinstance(compiled, nn.Module) else model
