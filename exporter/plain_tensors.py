"""Tensors that a model holds as plain attributes: torch forgets them when it moves, saves or traces the model."""

import copy

from torch import Tensor, nn

__all__ = ["with_registered_tensors"]


def with_registered_tensors(model: nn.Module) -> nn.Module:
    """``model``, or where its modules have plain tensors as attributes, a copy in which these are buffers."""
    found = [
        (path, name)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    ]
    if not found:
        return model
    registered = copy.deepcopy(model)
    for path, name in found:
        module = registered.get_submodule(path)
        value = vars(module).pop(name)
        module.register_buffer(name, value.detach())
    return registered
