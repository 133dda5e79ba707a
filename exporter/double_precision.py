"""A user's model in double precision, although its forward asks for single precision."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["double_precision"]


@contextmanager
def double_precision() -> Iterator[None]:
    """``x.float()``, ``x.to(torch.float32)`` and ``torch.zeros(3)`` give double precision while this is active.

    Products and layers take numbers of one precision only, and the model's own are in double precision.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _NoSingle():
            yield
    finally:
        torch.set_default_dtype(default)


class _NoSingle(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, with float64 for float32."""
        if func is Tensor.float:
            func = Tensor.double
        named = {name: _doubled(value) for name, value in (kwargs or {}).items()}
        return func(*map(_doubled, args), **named)


def _doubled(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
