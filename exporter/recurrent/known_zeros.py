"""First states of zeros that a model writes for a recurrent layer.

Known to be zeros, they count as none given: the layer then starts from zeros of as many units as it keeps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["KnownZeros", "is_known_zero"]

_MARK = "edge_fl_zeros"
_MADE = (torch.zeros, torch.zeros_like, Tensor.new_zeros, Tensor.zero_)
_KEPT = {
    *("to", "float", "double", "type", "type_as", "cpu", "cuda"),
    *("detach", "clone", "contiguous", "squeeze", "unsqueeze"),
    *("view", "reshape", "expand", "expand_as", "repeat", "transpose", "permute"),
}
"""Functions of zeros that give zeros, by name."""


def is_known_zero(tensor: Tensor) -> bool:
    """Whether a model wrote ``tensor`` as zeros, and nothing over it, while :class:`KnownZeros` was active."""
    mark = getattr(tensor, _MARK, None)
    return mark is not None and mark == tensor._version  # which counts writes through any view


class KnownZeros(TorchFunctionMode):
    """While active, tensors of zeros are marked."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, and mark what it gives."""
        of_zeros = bool(args) and isinstance(args[0], Tensor) and is_known_zero(args[0])
        if func is Tensor.requires_grad_ and of_zeros:
            return args[0]  # torch refuses it within what it differentiates, and nobody reads a gradient of zeros
        result = func(*args, **(kwargs or {}))
        kept = of_zeros and getattr(func, "__name__", "") in _KEPT
        if (func in _MADE or kept) and isinstance(result, Tensor):
            setattr(result, _MARK, result._version)
        return result
