"""Tensors that a model holds as plain attributes: torch forgets them when it moves, saves or traces the model."""

import copy

from torch import Tensor, nn

__all__ = ["with_registered_tensors"]


def with_registered_tensors(model: nn.Module) -> nn.Module:
    """``model``, or where its modules have plain tensors as attributes, a copy in which these are buffers.

    Two kinds stay what they are: a tensor that was computed of parameters, as ``weight_norm`` leaves one behind, and
    one whose class has an attribute of that name, which would hide the buffer.
    """
    held = [
        (path, name, value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    ]
    found = [
        (path, name, value)
        for path, name, value in held
        if value.is_leaf and not hasattr(type(model.get_submodule(path)), name)
    ]
    if not found:
        return model
    registered = copy.deepcopy(model, {id(value): value.detach().clone() for _, _, value in held})
    for path, name, value in found:
        module = registered.get_submodule(path)
        del vars(module)[name]
        module.register_buffer(name, value.detach().clone())
    return registered
