"""One forward pass of a user's model, to see what it does: in evaluation, without gradients, leaving nothing behind."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

__all__ = ["one_pass"]


def one_pass(model: nn.Module, x: Tensor, watching: Iterable[RemovableHandle] = ()) -> Any:
    """What ``model`` gives for ``x``. It trains or not as before, and the hooks ``watching`` are taken off it.

    Raises whatever its forward raises.
    """
    training = model.training
    try:
        with torch.no_grad():
            return model.eval()(x)
    finally:
        model.train(training)
        for handle in watching:
            handle.remove()
