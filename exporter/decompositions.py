"""What device runtimes cannot run, in terms of what they can: the part that is the same for all of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

__all__ = ["Decompositions", "core_decompositions"]

Decompositions = Mapping[Any, Callable[..., Any]]
"""ATen overloads and what to trace in their place."""

_aten = torch.ops.aten


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """Core ATen, with the gradients of activations and of the losses written out."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    gradients = [
        _aten._log_softmax_backward_data,
        _aten.threshold_backward,
        _aten.tanh_backward,
        _aten.sigmoid_backward,
    ]
    table.update(get_decompositions(gradients))
    table[_aten.empty_permuted.default] = _empty_permuted
    return table


def _empty_permuted(size: Sequence[int], physical_layout: Sequence[int], **options: Any) -> Tensor:
    """Memory to be written to; no runtime has an operator for its strides."""
    return torch.zeros(size, **options)
