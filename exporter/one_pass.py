"""One forward pass of a user's model, to see what it does: in evaluation, without gradients, leaving nothing behind."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

__all__ = ["count_calls", "one_pass"]


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


def count_calls(model: nn.Module, x: Tensor, modules: Mapping[str, nn.Module]) -> Counter[str]:
    """How often ``model`` calls each of its ``modules`` for ``x``, by name."""
    calls = Counter[str]()

    def counted(name: str) -> RemovableHandle:
        return modules[name].register_forward_pre_hook(lambda *_: calls.update([name]))

    one_pass(model, x, [counted(name) for name in modules])
    return calls
