"""Which parameters multiply the outputs of every block's layer, for sub-models that predict with a factor."""

from collections import Counter

from torch import nn

from edge_fl.core.layout import Layout
from exporter.groups import PRODUCERS
from exporter.own_forward import activates
from exporter.scale_places import NORMS

__all__ = ["scaled_parameters"]


def scaled_parameters(model: nn.Module, layout: Layout, scaled: tuple[str, ...]) -> tuple[str, ...]:
    """The weights and biases of the layers ``scaled``, in the layout's order.

    None at all where a layer's outputs are not proportional to parameters of its own: those of a recurrent layer, of
    a norm without parameters, of a layer whose weight is frozen, is each device's own, or is another layer's, too.
    """
    owners = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    parameters = [tensor.name for tensor in layout.parameters]
    found = set[str]()
    for place in scaled:
        name = _with_parameters(model, place)
        module = model.get_submodule(name)
        own = {f"{name}.{key}": p for key, p in module.named_parameters(recurse=False)}
        known = isinstance(module, (*PRODUCERS, *NORMS)) and bool(own)
        plain = known and own.keys() <= {f"{name}.weight", f"{name}.bias"}
        if not plain or not own.keys() <= set(parameters) or any(owners[id(p)] > 1 for p in own.values()):
            return ()
        found |= own.keys()
    return tuple(name for name in parameters if name in found)


def _with_parameters(model: nn.Module, place: str) -> str:
    """The module that a scaled place is, or the norm that it is within, behind the norm's parameters."""
    outer = place.rpartition(".")[0]
    return outer if activates(model.get_submodule(outer)) else place
