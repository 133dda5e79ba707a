"""Modules of a model in place of others."""

from collections.abc import Callable

from torch import nn

__all__ = ["replace_modules"]


def replace_modules(model: nn.Module, replaced: Callable[[nn.Module], nn.Module]) -> None:
    """Put ``replaced(module)`` in place of every module of ``model`` but itself; one in several places stays one."""
    done: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None:
                if child not in done:
                    done[child] = replaced(child)
                setattr(parent, name, done[child])
