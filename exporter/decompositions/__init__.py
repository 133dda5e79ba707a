"""What device runtimes cannot run, or run slowly, in terms of what they run well: one file a topic."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

from exporter.decompositions.convolution import convolution_decompositions
from exporter.decompositions.normalisation import normalisation_decompositions
from exporter.decompositions.pooling import pooling_decompositions
from exporter.decompositions.resizing import resizing_decompositions

__all__ = ["Decompositions", "core_decompositions"]

Decompositions = Mapping[Any, Callable[..., Any]]
"""ATen overloads and what to trace in their place."""

_aten = torch.ops.aten
_GRADIENTS = [
    _aten._log_softmax_backward_data,
    _aten._softmax_backward_data,
    _aten.elu_backward,
    _aten.embedding_dense_backward,
    _aten.gelu_backward,
    _aten.hardsigmoid_backward,
    _aten.hardswish_backward,
    _aten.hardtanh_backward,
    _aten.leaky_relu_backward,
    _aten.native_layer_norm_backward,
    _aten.sigmoid_backward,
    _aten.silu_backward,
    _aten.softplus_backward,
    _aten.tanh_backward,
    _aten.threshold_backward,
]


def core_decompositions(*, gather: bool = False) -> dict[Any, Callable[..., Any]]:
    """Core ATen, with layers of images, normalisation and the gradients of activations and losses written out.

    ``gather`` is for runtimes with a quick ``index_select``.
    """
    table = dict(_torchs(len(torch._C._dispatch_get_all_op_names())))
    table.update(get_decompositions(_GRADIENTS))
    table[_aten.empty_permuted.default] = _empty_permuted
    table.update(convolution_decompositions(gather=gather))
    table.update(pooling_decompositions())
    table.update(resizing_decompositions())
    table.update(normalisation_decompositions())
    return table


@lru_cache(maxsize=1)
def _torchs(operations: int) -> Decompositions:
    """Torch's own, which it collects anew at each call (a quarter of a second).

    A library that registers further ``operations`` may bring decompositions.
    """
    del operations
    return dict(core_aten_decompositions())


def _empty_permuted(size: Sequence[int], physical_layout: Sequence[int], **options: Any) -> Tensor:
    """Memory to be written to; no runtime has an operator for its strides."""
    return torch.zeros(size, **options)
