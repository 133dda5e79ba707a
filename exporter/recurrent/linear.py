"""Linear layers over sequences, as products of two matrices."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

__all__ = ["FlatLinear"]


_LINEAR = (functional.linear, torch.ops.aten.linear.default)


class FlatLinear(TorchFunctionMode):
    """While active, ``linear`` on more than two axes takes all but the last as one.

    torch does so too, but under torch.func it fixes every length in the trace when there is a bias, and on an input
    that is not contiguous it multiplies sample by sample with copies of the weight.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``; flatten around it if it is ``linear``."""
        if func not in _LINEAR or args[0].dim() < 3:
            return func(*args, **(kwargs or {}))
        x, weight, *bias = args
        flat = func(x.flatten(0, -2), weight, *bias, **(kwargs or {}))
        return flat.reshape(*x.shape[:-1], weight.shape[0])
