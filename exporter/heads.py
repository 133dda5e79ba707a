"""Whole heads of attention as units, proposed.

A unit is a head with its rows of q, k and v and its columns of the layer behind; where several query heads share a head
of keys, it is that group. :mod:`exporter.derive` keeps what running the model confirms, as of every proposal.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from exporter.groups import Group
from exporter.module_names import within
from exporter.transposed import is_transposed

__all__ = ["head_variants", "sibling_heads"]

_QUERIES, _KEYS, _VALUES = ("q_proj", "q_lin", "query"), ("k_proj", "k_lin", "key"), ("v_proj", "v_lin", "value")
_OUTPUTS = ("o_proj", "out_proj", "out_lin", "dense", "c_proj")
_FUSED = ("c_attn", "query_key_value", "qkv_proj", "qkv")


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
    """Heads of modules whose layers of q, k and v, or of all three, lie beside their output layer.

    They are proposed by the layers' names, as Hugging Face's decoders have them: what rotates positions or flattens
    samples cannot be followed.
    """
    sizes = list(head_sizes)
    for path, module in model.named_modules():
        output, fused = _child(module, path, _OUTPUTS), _child(module, path, _FUSED)
        apart = [
            layer for names in (_QUERIES, _KEYS, _VALUES) if (layer := _child(module, path, names)) is not None
        ]
        if output is None:
            continue
        for features in sizes:
            if len(apart) == 3:
                yield from _apart(path, apart, output, features)
            elif fused is not None:
                yield from _fused(path, fused, output, features)


class _Layer:
    """A linear layer, which may be Hugging Face's Conv1D."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self._module = name, module
        self._axis = 1 if is_transposed(module) else 0
        shape = module.get_parameter("weight").shape
        self.rows, self.columns = shape[self._axis], shape[1 - self._axis]

    def own(self, units: NDArray[np.int64]) -> dict[tuple[str, int], NDArray[np.int64]]:
        """The units of its outputs."""
        return {
            (f"{self.name}.{tensor}", 0 if parameter.dim() == 1 else self._axis): units
            for tensor, parameter in self._module.named_parameters()
        }

    def read(self, units: NDArray[np.int64]) -> dict[tuple[str, int], NDArray[np.int64]]:
        """The units of its inputs."""
        return {(f"{self.name}.weight", 1 - self._axis): units}


def _child(module: nn.Module, path: str, names: Iterable[str]) -> _Layer | None:
    for name in names:
        child = getattr(module, name, None)
        if isinstance(child, nn.Linear) and child._parameters.get("weight") is None:
            continue  # computed anew from other parameters
        if isinstance(child, nn.Linear) or (isinstance(child, nn.Module) and is_transposed(child)):
            return _Layer(within(path, name), child)
    return None


def _apart(path: str, layers: Sequence[_Layer], output: _Layer, features: int) -> Iterator[Group]:
    """Queries, keys and values in a layer each; query heads may share keys."""
    units, rest = divmod(layers[1].rows, features)
    if units and not rest and not any(n % units for n in (layers[0].rows, layers[2].rows, output.columns)):
        owners = {key: at for layer in layers for key, at in layer.own(_runs(layer.rows, units)).items()}
        yield _heads(path, units, layers, owners, output)


def _fused(path: str, layer: _Layer, output: _Layer, features: int) -> Iterator[Group]:
    """All three in one layer: a third after another, or head by head."""
    units, rest = divmod(output.columns, features)
    if units and not rest and layer.rows == 3 * output.columns:
        for at in (np.tile(_runs(output.columns, units), 3), _runs(layer.rows, units)):
            yield _heads(path, units, [layer], layer.own(at), output)


def _runs(length: int, units: int) -> NDArray[np.int64]:
    """Units of neighbouring indices."""
    return np.arange(length) // (length // units)


def _heads(
    path: str,
    units: int,
    layers: Sequence[_Layer],
    owners: dict[tuple[str, int], NDArray[np.int64]],
    output: _Layer,
) -> Group:
    columns = output.read(_runs(output.columns, units))
    producers = tuple(layer.name for layer in layers)
    return Group(within(path, "heads"), units, producers, {**owners, **columns}, frozenset(owners), heads=True)
