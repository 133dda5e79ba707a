"""Recurrent modules of torch, whose sizes are written into them, for ours, which read them from their weights."""

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from edge_fl.core.errors import UnsupportedModelError
from exporter.recurrent.cells import ElmanCell, GruCell, LstmCell
from exporter.recurrent.layers import ElmanLayers, GruLayers, LstmLayers
from exporter.replace_modules import replace_modules

__all__ = ["replace_recurrent"]

_REPLACEMENTS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.LSTM: LstmLayers,
    nn.GRU: GruLayers,
    nn.RNN: ElmanLayers,
    nn.LSTMCell: LstmCell,
    nn.GRUCell: GruCell,
    nn.RNNCell: ElmanCell,
}


def replace_recurrent(model: nn.Module) -> nn.Module:
    """A deep copy of ``model`` with every recurrent module replaced; names and values of its tensors are the same.

    A module that is used in several places is replaced by one.

    Raises
    ------
    UnsupportedModelError
        On projections (``proj_size``).
    """
    _refuse(model)
    model = copy.deepcopy(model)
    if type(model) in _REPLACEMENTS:
        return _REPLACEMENTS[type(model)](model)
    replace_modules(model, lambda module: _REPLACEMENTS.get(type(module), _same)(module))
    return model


def _same(module: nn.Module) -> nn.Module:
    return module


def _refuse(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if not isinstance(module, nn.RNNBase):
            continue
        where, kind = name or "the model itself", type(module).__name__
        if module.proj_size > 0:
            raise UnsupportedModelError(
                f"'{where}' is a {kind} with proj_size={module.proj_size}: set proj_size to 0, or put a Linear layer "
                "behind it."
            )
