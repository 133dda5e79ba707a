"""Functions that torch, or a library of models, runs in a way that a trace cannot hold, in plain operations."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from edge_fl.core.errors import UnsupportedModelError

__all__ = ["PlainFunctions"]

_CONCATENATIONS = (torch.cat, torch.concat, torch.concatenate)
_MEANS = {
    torch.adaptive_avg_pool1d: (-1,),
    functional.adaptive_avg_pool2d: (-1, -2),
    torch._C._nn.adaptive_avg_pool2d: (-1, -2),
}
"""Adaptive pooling, and the axes that it pools."""
_MAXIMA = {
    functional.adaptive_max_pool1d: functional.max_pool1d,
    functional.adaptive_max_pool2d: functional.max_pool2d,
}
_IN_PLACE: dict[Any, Callable[..., Tensor]] = {
    Tensor.add_: torch.add,
    Tensor.sub_: torch.sub,
    Tensor.mul_: torch.mul,
    Tensor.div_: torch.div,
}
_COMPARISONS = (torch.lt, Tensor.lt, Tensor.__lt__)


class PlainFunctions(TorchFunctionMode):
    """While active:

    - an empty tensor, such as the cache of keys that a decoder begins with, is left out of a concatenation;
    - adaptive average pooling to one place is a mean, which has no memory format to restore in place;
    - adaptive max pooling in windows of one size is max pooling, along one axis at a time;
    - ``one_hot`` of a given number of classes compares, where torch looks at the values first;
    - ``+=`` and the like on a view give a new tensor: autograd would go by the strides of what lies below;
    - ``torch.rand`` is not below 0, so that a layer whose probability of being left out is 0 stays (LayerDrop).
    """

    def __init__(self) -> None:
        super().__init__()
        self._drawn: list[Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or what is as good."""
        if func in _CONCATENATIONS and any(_is_empty(part) for part in args[0]):
            full = [part for part in args[0] if not _is_empty(part)]
            return full[0] if len(full) == 1 else func(full or args[0], *args[1:], **(kwargs or {}))
        if func in _MEANS and not kwargs and _is_one(args[1]):
            return args[0].mean(_MEANS[func], keepdim=True)
        if func in _MAXIMA and len(args) == 2 and (windows := _windows(args[0], args[1])):
            return reduce(_MAXIMA[func], windows, args[0])
        if func in _COMPARISONS and not kwargs and any(args[0] is drawn for drawn in self._drawn):
            return func(*args) if isinstance(args[1], Tensor) or args[1] > 0 else False
        if func in _IN_PLACE and not kwargs and args[0].requires_grad and args[0]._is_view():
            return _IN_PLACE[func](*args)
        func = _WRITTEN_OUT.get(func, func)
        result = func(*args, **(kwargs or {}))
        if func is torch.rand:
            self._drawn.append(result)
        return result


def _is_empty(part: Tensor) -> bool:
    """Torch leaves such tensors out by itself, of whatever shape the others are."""
    return part.dim() == 1 and isinstance(part.shape[0], int) and part.shape[0] == 0


def _one_hot(input: Tensor, num_classes: int = -1) -> Tensor:  # as torch calls it
    if num_classes < 1:
        raise UnsupportedModelError("The model, or its loss, calls one_hot without num_classes: give num_classes.")
    return (input.unsqueeze(-1) == torch.arange(num_classes, device=input.device)).long()


_WRITTEN_OUT: dict[Any, Callable[..., Tensor]] = {functional.one_hot: _one_hot}


def _windows(x: Tensor, size: Any) -> list[tuple[int, ...]]:
    """The window along each axis that adaptive max pooling to ``size`` takes; none where windows differ in size.

    The last axis comes first: the gradient then goes to the entry that torch takes of several, the first row's first.
    """
    sizes = [size] if isinstance(size, int) else [*size]
    lengths = [int(length) for length in x.shape[-len(sizes) :]]
    places = [length if place is None else place for place, length in zip(sizes, lengths, strict=True)]
    pairs = [divmod(length, place) for place, length in zip(places, lengths, strict=True)]
    if any(rest for _, rest in pairs):
        return []
    shares = [share for share, _ in pairs]
    return [
        tuple(share if i == axis else 1 for i, share in enumerate(shares)) for axis in reversed(range(len(shares)))
    ]


def _is_one(size: Any) -> bool:
    return all(length == 1 for length in (size if isinstance(size, Sequence) else (size,)))
