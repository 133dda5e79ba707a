"""Which rows and columns of a recurrent module's weights belong to its hidden units: declared, not derived.

Unit j of a layer with G gates (4 in an LSTM, 3 in a GRU, 1 in a plain layer) owns row g H + j of every gate g in
both weights and both biases, column j of the layer's own recurrent weight, and the column of the layers above that
reads its output. With those rows zero, a unit that starts at zero stays there, in every kind of layer:

    LSTM: g = tanh(0) = 0, so c' = c / 2 = 0 and h' = tanh(c') / 2 = 0
    GRU: n = tanh(0) = 0, so h' = h / 2 = 0
    plain: h' = tanh(0) = relu(0) = 0
"""

import numpy as np
from numpy.typing import NDArray
from torch import nn

from exporter.module_names import within
from exporter.recurrent.cells import ElmanCell, GruCell, LstmCell, RecurrentCell
from exporter.recurrent.layers import ElmanLayers, GruLayers, LstmLayers, RecurrentLayers
from exporter.unit_axes import UnitAxes

__all__ = ["recurrent_axes"]

_GATES: dict[type[nn.Module], int] = {
    LstmLayers: 4,
    LstmCell: 4,
    GruLayers: 3,
    GruCell: 3,
    ElmanLayers: 1,
    ElmanCell: 1,
}


def recurrent_axes(module: nn.Module, name: str) -> list[UnitAxes]:
    """The units of every layer and direction, bottom first.

    Parameters
    ----------
    module
        One that :func:`exporter.recurrent.replace.replace_recurrent` put in, with all of its weights.
    name
        Its name in the model, before those of blocks (``name.l0``, ``name.l1_reverse``) and parameters; "" if it is
        the model. A cell's block is called as the cell.

    Returns
    -------
    Nothing for any other module.
    """
    match module:
        case RecurrentLayers():
            return _layers(module, name)
        case RecurrentCell():
            size = module.weight_hh.shape[1]
            own = _rows(module, name, "", size)
            columns = {(within(name, "weight_hh"), 1): np.arange(size)}
            return [UnitAxes(name, size, {**own, **columns}, frozenset(own), slice(0, size))]
    return []


def _layers(module: RecurrentLayers, name: str) -> list[UnitAxes]:
    found = []
    suffixes = module.suffixes()
    width = len(suffixes) // module.num_layers
    for number, suffix in enumerate(suffixes):
        hidden = module.get_parameter(f"weight_hh{suffix}")
        size = hidden.shape[1]
        start = size * (number % width)
        own = _rows(module, name, suffix, size)
        owners = {**own, (within(name, f"weight_hh{suffix}"), 1): np.arange(size)}
        bottom = (number // width + 1) * width
        for above in suffixes[bottom : bottom + width]:
            columns = np.full(module.get_parameter(f"weight_ih{above}").shape[1], -1, dtype=np.int64)
            columns[start : start + size] = np.arange(size)
            owners[within(name, f"weight_ih{above}"), 1] = columns
        outputs = slice(start, start + size) if bottom == len(suffixes) else None
        found.append(UnitAxes(within(name, suffix[1:]), size, owners, frozenset(own), outputs))
    return found


def _rows(module: nn.Module, name: str, suffix: str, size: int) -> dict[tuple[str, int], NDArray[np.int64]]:
    owners = np.tile(np.arange(size), _GATES[type(module)])
    names = [f"{kind}{suffix}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    return {(within(name, n), 0): owners for n in names if getattr(module, n, None) is not None}
