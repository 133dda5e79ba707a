"""Models in what torch wraps around them for speed."""

import torch
from torch import nn

from edge_fl.core.errors import ModelError

__all__ = ["unwrapped"]

_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model within ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel``; any other as it is.

    Raises ModelError for a module of ``torch.jit``, whose forward is no Python any more, and for a compiled one within.
    """
    while _is_compiled(model) or _is_parallel(model):
        model = model._orig_mod if _is_compiled(model) else model.module  # type: ignore[assignment]
    for name, module in model.named_modules():
        where = f"The module '{name}'" if name else "The model"
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(f"{where} is of torch.jit: give the nn.Module that was scripted or traced.")
        if _is_compiled(module):
            raise ModelError(f"{where} is compiled: export the model first, and call torch.compile later.")
    return model


def _is_parallel(model: nn.Module) -> bool:
    """Whether torch's own forward runs the model within; a subclass may have its own."""
    return isinstance(model, _PARALLEL) and type(model).forward in [kind.forward for kind in _PARALLEL]


def _is_compiled(module: nn.Module) -> bool:
    """By its class's name: the class itself costs the import of torch's compiler."""
    kind = type(module)
    return (kind.__module__, kind.__name__) == ("torch._dynamo.eval_frame", "OptimizedModule")
