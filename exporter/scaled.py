"""Which parameters multiply the outputs of every block's layer, for sub-models that predict with a factor."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from edge_fl.core.layout import Layout
from exporter.equivalence import weights_of
from exporter.forward import training_forward
from exporter.groups import PRODUCERS
from exporter.own_forward import activates
from exporter.own_outputs import flat_outputs
from exporter.recurrent.scaling import RECURRENT, blocks_of
from exporter.scale_places import NORMS
from exporter.source import Source
from exporter.written_out import written_out

__all__ = ["same_factor", "scaled_parameters"]

_FACTOR = 2.0
_TOLERANCE = 1e-4


def scaled_parameters(
    model: nn.Module, layout: Layout, scaled: tuple[str, ...], inner: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The weights and biases of the layers ``scaled``, in the layout's order; of recurrent ones what reads their units.

    None at all where a layer's outputs are not proportional to parameters: those of a norm without any, of a layer
    whose weight is frozen, is each device's own, or is another layer's, too.

    Parameters
    ----------
    inner
        The weights of recurrent layers that read their own units.
    """
    recurrent = {name for name in scaled if isinstance(model.get_submodule(name), RECURRENT)}
    found = [*inner, *_readers(layout, recurrent)]
    for place in scaled:
        if place not in recurrent:
            own = _own(model, _with_parameters(model, place))
            if not own:
                return ()
            found += own
    owners = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    shared = [tensor.name for tensor in layout.parameters]
    if len({*found}) < len(found) or not {*found} <= {*shared}:
        return ()
    if any(owners[id(model.get_parameter(name))] > 1 for name in found):
        return ()
    return tuple(name for name in shared if name in found)


def same_factor(source: Source, names: tuple[str, ...], x: Tensor) -> bool:
    """Whether a factor in the parameters ``names`` does what a step's scale does, for an input ``x`` ``[B, ...]``."""
    source = replace(source, dropout=None)
    tensors = {name: torch.from_numpy(array) for name, array in weights_of(source.module).items()}
    multiplied = {name: tensor * _FACTOR if name in names else tensor for name, tensor in tensors.items()}
    with torch.no_grad(), written_out():
        scaled, _ = training_forward(source, tensors, {"x": x, "scale": torch.tensor(_FACTOR)})
        plain, _ = training_forward(source, multiplied, {"x": x, "scale": torch.tensor(1.0)})
    off = (flat_outputs(scaled) - flat_outputs(plain)).abs().max()
    return bool(off <= _TOLERANCE * (1 + flat_outputs(scaled).abs().max()))


def _own(model: nn.Module, name: str) -> list[str]:
    """The parameters of a layer whose outputs are proportional to them; none of any other."""
    module = model.get_submodule(name)
    own = [f"{name}.{key}" for key, _ in module.named_parameters(recurse=False)]
    return own if isinstance(module, (*PRODUCERS, *NORMS)) and {*own} <= {f"{name}.weight", f"{name}.bias"} else []


def _with_parameters(model: nn.Module, place: str) -> str:
    """The module that a scaled place is, or the norm that it is within, behind the norm's parameters."""
    outer = place.rpartition(".")[0]
    return outer if activates(model.get_submodule(outer)) else place


def _readers(layout: Layout, modules: set[str]) -> Iterator[str]:
    """The tensors of other modules whose columns read units of ``modules``."""
    of = {tensor.name: tensor.name.rpartition(".")[0] for tensor in layout.tensors}
    own = {b for tensor in layout.tensors if of[tensor.name] in modules for b in blocks_of(*tensor.rows)}
    for tensor in layout.tensors:
        read = blocks_of(*tensor.units) - blocks_of(*tensor.rows)
        if of[tensor.name] not in modules and own & read:
            yield tensor.name
