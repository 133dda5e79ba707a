"""One forward pass of a user's model, to see what it does: in evaluation, leaving nothing behind."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

__all__ = ["one_pass"]


def one_pass(
    model: nn.Module, x: Tensor, watching: Iterable[RemovableHandle] = (), *, gradients: bool = False
) -> Any:
    """What ``model`` gives for ``x``. It trains or not as before, and the hooks ``watching`` are taken off it.

    With ``gradients`` the outputs know what they were computed from.

    Raises whatever its forward raises.
    """
    training = model.training
    try:
        with torch.set_grad_enabled(gradients):
            return model.eval()(x)
    finally:
        model.train(training)
        for handle in watching:
            handle.remove()
