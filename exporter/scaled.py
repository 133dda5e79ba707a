"""Which parameters multiply the outputs of every block's layer, for sub-models that predict with a factor."""

from collections import Counter

from torch import nn

from edge_fl.core.layout import Layout, Tensor
from exporter.groups import PRODUCERS

__all__ = ["scaled_parameters"]


def scaled_parameters(model: nn.Module, layout: Layout, scaled: tuple[str, ...]) -> tuple[str, ...]:
    """The weights and biases of the layers ``scaled``, in the layout's order, but for those that BatchNorm normalises.

    None at all where a layer's outputs are not proportional to parameters of its own: those of a recurrent layer, of
    one whose weight is frozen, or is another's, too.
    """
    uses = Counter(id(p) for m in model.modules() for p in m.parameters(recurse=False))  # one more for each owner
    normalised = {block for t in layout.tensors if t.role == "statistic" for block in _blocks(t)}
    parameters = {tensor.name: tensor for tensor in layout.parameters}
    found = set[str]()
    for name in scaled:
        module = model.get_submodule(name)
        own = {f"{name}.{key}": p for key, p in module.named_parameters(recurse=False)}
        if not isinstance(module, (*PRODUCERS, nn.Embedding)) or not own.keys() <= {
            f"{name}.weight",
            f"{name}.bias",
        }:
            return ()
        if not own.keys() <= parameters.keys() or any(uses[id(p)] > 1 for p in own.values()):
            return ()
        found |= {key for key in own if not _blocks(parameters[key]) & normalised}
    return tuple(key for key in parameters if key in found)


def _blocks(tensor: Tensor) -> set[str]:
    return {segment.block for axis in tensor.rows for segment in axis if segment.block is not None}
