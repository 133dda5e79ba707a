"""Whole heads of attention as units, proposed.

A unit is a head with its rows of q, k and v and its columns of the layer behind; where several query heads share a head
of keys, it is that group. :mod:`exporter.derive` keeps what running the model confirms, as of every proposal.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from torch import nn

from exporter.groups import Group
from exporter.module_names import within

__all__ = ["head_variants", "sibling_heads"]

_QUERIES, _KEYS, _VALUES = ("q_proj", "q_lin", "query"), ("k_proj", "k_lin", "key"), ("v_proj", "v_lin", "value")
_OUTPUTS = ("o_proj", "out_proj", "out_lin", "dense")


def head_variants(group: Group, head_sizes: Iterable[int]) -> Iterator[Group]:
    """``group`` with whole heads as units, for each size of a head; q, k and v may lie in one layer, thirds after
    another.
    """
    for features in head_sizes:
        if features > 1 and group.size % features == 0 and group.size > features:
            yield replace(group.coarse(features), heads=True)
        third, rest = divmod(group.size, 3)
        if features > 1 and not rest and third % features == 0:
            owners = {
                key: np.where(units < 0, -1, units % third // features) for key, units in group.owners.items()
            }
            yield replace(group, size=third // features, owners=owners, heads=True)


def sibling_heads(model: nn.Module, head_sizes: Iterable[int]) -> Iterator[Group]:
    """Heads of modules whose q, k, v and output layers lie side by side, as Hugging Face's decoders have them.

    They are proposed by the layers' names, for what rotates positions cannot be followed.
    """
    sizes = list(head_sizes)
    for path, module in model.named_modules():
        layers = [_child(module, names) for names in (_QUERIES, _KEYS, _VALUES, _OUTPUTS)]
        if None in layers:
            continue
        query, key, value, output = (within(path, name) for name in layers if name is not None)
        rows = [_linear(model, name).out_features for name in (query, key, value)]
        columns = _linear(model, output).in_features
        for features in sizes:
            units = rows[1] // features
            if not units or rows[1] % features or any(n % units for n in (rows[0], rows[2], columns)):
                continue
            owners, own = {}, set()
            for name, length in zip((query, key, value), rows, strict=True):
                for tensor, _ in _linear(model, name).named_parameters():
                    owners[f"{name}.{tensor}", 0] = np.arange(length) // (length // units)
                    own.add((f"{name}.{tensor}", 0))
            owners[f"{output}.weight", 1] = np.arange(columns) // (columns // units)
            producers = (query, key, value)
            yield Group(within(path, "heads"), units, producers, owners, frozenset(own), heads=True)


def _child(module: nn.Module, names: Iterable[str]) -> str | None:
    return next((name for name in names if isinstance(getattr(module, name, None), nn.Linear)), None)


def _linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)  # as _child found it
    return layer
