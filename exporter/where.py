"""Where in a model something happens: the module whose own code is running, and the user's line in it."""

import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["Running", "user_line"]

_NOT_THE_USERS = (Path(torch.__file__).parent, Path(__file__).parent)


class Running(ExitStack):
    """While entered, follows which module of ``model`` is running.

    Parameters
    ----------
    leave
        Told the module whose own code stops running, each time it calls another module or returns.
    """

    def __init__(self, model: nn.Module, leave: Callable[[str], None] = lambda _: None) -> None:
        super().__init__()
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack: list[str] = []
        self._leave = leave

    @property
    def module(self) -> str:
        """The innermost module that was called and has not returned: after an error, the one that raised it."""
        return self._stack[-1] if self._stack else ""

    def __enter__(self) -> "Running":
        super().__enter__()
        self.callback(register_module_forward_pre_hook(self._called).remove)
        self.callback(register_module_forward_hook(self._returned).remove)
        return self

    def _called(self, module: nn.Module, _: Any) -> None:
        if id(module) in self._names:
            if self._stack:
                self._leave(self._stack[-1])
            self._stack.append(self._names[id(module)])

    def _returned(self, module: nn.Module, _: Any, __: Any) -> None:
        if id(module) in self._names and self._stack:
            self._leave(self._stack.pop())


def user_line(error: BaseException) -> str | None:
    """The innermost line of the user's code that led to an error, as ``file.py:12, `code```; None if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.suffix == ".py" and not any(path.is_relative_to(folder) for folder in _NOT_THE_USERS):
            return f"{path.name}:{frame.lineno}, `{frame.line}`"
    return None
