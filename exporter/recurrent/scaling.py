"""A factor on the units of recurrent layers, which everything that reads a unit gets, the next time step among it.

Outside of a recurrent module its units are multiplied: its outputs, and the states h that it gives and is given.
Inside, the weights are whose columns read its units: a state that stays as it was (in a GRU) is not multiplied twice.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edge_fl.core.layout import Axis, Layout
from exporter.recurrent.known_zeros import is_known_zero
from exporter.recurrent.states import LayerStates

__all__ = ["RECURRENT", "ScaledUnits", "blocks_of", "dropping", "inner_weights"]


RECURRENT = (nn.RNNBase, nn.RNNCellBase)
"""Recurrent modules as the user's model has them."""


def inner_weights(model: nn.Module, layout: Layout) -> tuple[str, ...]:
    """The weights of recurrent modules of the user's ``model`` whose columns read units of the same module."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, RECURRENT):
            tensors = [tensor for tensor in layout.tensors if tensor.name.rpartition(".")[0] == name]
            own = {block for tensor in tensors for block in blocks_of(tensor.rows[0])}
            found += [t.name for t in tensors if len(t.shape) > 1 and own & blocks_of(t.units[1])]
    return tuple(found)


def blocks_of(*axes: Axis) -> set[str]:
    """The blocks that own indices of these axes."""
    return {segment.block for axis in axes for segment in axis if segment.block is not None}


def dropping(model: nn.Module, name: str, layout: Layout) -> tuple[bool, ...]:
    """Of each layer and direction of a recurrent module, in torch's order, whether its units can be dropped.

    Those of frozen layers cannot.

    Parameters
    ----------
    model
        The user's or the adapted one, with the module ``name``.
    """
    names = {id(parameter): of for of, parameter in model.named_parameters()}
    weights = dict(model.get_submodule(name).named_parameters(recurse=False, remove_duplicate=False))
    hidden = [names[id(weight)] for of, weight in weights.items() if of.startswith("weight_hh")]
    rows = {tensor.name: tensor.rows[0] for tensor in layout.tensors if tensor.name in hidden}
    return tuple(bool(blocks_of(rows.get(name, ()))) for name in hidden)


@dataclass(frozen=True)
class ScaledUnits:
    """A step's factor around a recurrent module: on what it gives, and out of the states that it is given.

    Where some of its layers or directions stay dense, these have no factor.

    Parameters
    ----------
    scale
        0-d.
    dropping
        As :func:`dropping` has it.
    both_ways
        Whether the module runs in both directions.
    cell
        Whether it is a cell, which gives its state alone.
    """

    scale: Tensor
    dropping: tuple[bool, ...]
    both_ways: bool = False
    cell: bool = False

    def out_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the module, with the state h that they give it as it was before the factor."""
        if len(args) > 1:
            return (args[0], self._states(args[1], 1 / self.scale), *args[2:]), kwargs
        if "hx" in kwargs:
            return args, {**kwargs, "hx": self._states(kwargs["hx"], 1 / self.scale)}
        return args, kwargs

    def on(self, given: Any) -> Any:
        """What the module gives, times the factor; a state c is not."""
        if self.cell:
            return self._states(given, self.scale)
        outputs, last = given
        return self._outputs(outputs, last), self._states(last, self.scale)

    def _outputs(self, outputs: Tensor, last: Any) -> Tensor:
        top = self.dropping[-2:] if self.both_ways else self.dropping[-1:]
        if all(top) or not any(top):
            return outputs * self.scale if all(top) else outputs
        states = last[0] if isinstance(last, tuple) else last
        forwards = states[-2].shape[-1]
        parts = outputs[..., :forwards], outputs[..., forwards:]
        return torch.cat(
            [part * self.scale if drops else part for part, drops in zip(parts, top, strict=True)], -1
        )

    def _states(self, state: Any, factor: Tensor) -> Any:
        """The state h times the factor; of a pair, h and c, the first."""
        match state:
            case None:
                return None
            case LayerStates():
                drops = zip(state, self.dropping, strict=True)
                return LayerStates([each * factor if dropped else each for each, dropped in drops])
            case Tensor():
                return state if is_known_zero(state) else state * self._by_layer(factor, state)
        return (self._states(state[0], factor), *state[1:])

    def _by_layer(self, factor: Tensor, state: Tensor) -> Tensor:
        """``factor``, or one for each layer of a ``state`` ``[layers, ..., H]`` of which some stay dense."""
        if all(self.dropping):
            return factor
        factors = torch.stack([factor if drops else torch.ones_like(factor) for drops in self.dropping])
        return factors.reshape(-1, *[1] * (state.dim() - 1))
