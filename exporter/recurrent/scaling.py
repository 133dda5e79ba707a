"""A factor on the units of recurrent layers, which everything that reads a unit gets, the next time step among it.

Outside of a recurrent module its units are multiplied: its outputs, and the states h that it gives and is given.
Inside, the weights are whose columns read its units: a state that stays as it was (in a GRU) is not multiplied twice.
"""

from typing import Any

from torch import Tensor, nn

from edge_fl.core.layout import Axis, Layout
from exporter.recurrent.known_zeros import is_known_zero
from exporter.recurrent.states import LayerStates

__all__ = ["RECURRENT", "blocks_of", "inner_weights", "scaled_states", "unscaled_states"]


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


def unscaled_states(
    args: tuple[Any, ...], kwargs: dict[str, Any], scale: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a recurrent module, with the state h that they give it as it was before the factor."""
    if len(args) > 1:
        return (args[0], _times(args[1], 1 / scale), *args[2:]), kwargs
    if "hx" in kwargs:
        return args, {**kwargs, "hx": _times(kwargs["hx"], 1 / scale)}
    return args, kwargs


def scaled_states(outputs: Any, scale: Tensor, *, cell: bool) -> Any:
    """What a recurrent module, or a ``cell``, gives, times the factor; a state c is not."""
    if cell:
        return _times(outputs, scale)
    return outputs[0] * scale, _times(outputs[1], scale)


def _times(state: Any, factor: Tensor) -> Any:
    """The state h times the factor; of a pair, h and c, the first."""
    match state:
        case None:
            return None
        case LayerStates():
            return LayerStates([each * factor for each in state])
        case Tensor():
            return state if is_known_zero(state) else state * factor
    return (_times(state[0], factor), *state[1:])
