"""Attention written out: two products and a softmax, which every runtime trains and torch-pruning can follow."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

__all__ = ["FUSED", "PlainAttention", "attend", "weigh"]

FUSED = (functional.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)
_MINUS_INFINITY = -1e9  # a softmax of nothing but true infinities would be NaN
_PRODUCTS = (torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__)


class PlainAttention(TorchFunctionMode):
    """While active, ``scaled_dot_product_attention`` is what torch documents it to be, in plain operations.

    Attributes
    ----------
    head_sizes
        Features of a head, of every attention that ran: those of fused ones, and last axes of 4-d products.
    """

    def __init__(self) -> None:
        super().__init__()
        self.head_sizes: dict[int, None] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or write it out."""
        if func in FUSED:
            self._note(args[0] if args else (kwargs or {})["query"])
            return attend(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            self._note(args[0])
        return func(*args, **(kwargs or {}))

    def _note(self, query: Tensor) -> None:
        if query.dim() == 4:
            self.head_sizes[int(query.shape[-1])] = None


def attend(  # noqa: PLR0917  # torch's own signature
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # torch's own signature
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    drop: Callable[[Tensor, float], Tensor] | None = None,
) -> Tensor:
    """``softmax(scale Q K^T + mask) V``, as ``torch.nn.functional.scaled_dot_product_attention`` has it.

    Parameters
    ----------
    query, key, value
        ``[..., heads, length, features]``; with ``enable_gqa`` key and value have a head for several of the query's.
    attn_mask
        Bool, true where a key is read, or float, which is added.
    drop
        What drops a share of the softmax, ``dropout_p``; None drops nothing.
    """
    masks = [] if attn_mask is None else [attn_mask]
    if enable_gqa:
        # One axis of groups: a head of keys is read by all query heads of its group.
        groups = query.shape[-3] // key.shape[-3]
        key, value = (_repeated(each, groups) for each in (key, value))
    if is_causal:
        rows, columns = torch.arange(query.shape[-2]), torch.arange(key.shape[-2])
        masks.insert(0, (rows[:, None] >= columns[None, :]).to(query.device))
    weights = weigh(query, key, masks, scale=query.shape[-1] ** -0.5 if scale is None else scale)
    return (weights if drop is None else drop(weights, dropout_p)) @ value


def weigh(query: Tensor, key: Tensor, masks: Iterable[Tensor], *, scale: float) -> Tensor:
    """``softmax(scale Q K^T + masks)``; of bool ``masks`` true is where a key is read, others are added."""
    scores = (query * scale) @ key.transpose(-2, -1)
    for mask in masks:
        read = mask.dtype == torch.bool
        scores = torch.where(mask, scores, _MINUS_INFINITY) if read else scores + mask
    return torch.softmax(scores, -1)


def _repeated(heads: Tensor, times: int) -> Tensor:
    wide = heads.unsqueeze(-3).expand(*heads.shape[:-2], times, *heads.shape[-2:])
    return wide.reshape(*heads.shape[:-3], heads.shape[-3] * times, *heads.shape[-2:])
