"""A model of some of its units, with weights of its own."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_fl.core.inputs import NamedInput, packed_input
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.methods.fedmp import unit_norms
from exporter.named_inputs import as_one

__all__ = ["ByName", "Narrowed", "chosen_units"]


def chosen_units(
    layout: Layout, weights: Weights, *, width: int, sparse: bool, narrowed: Collection[str] | None = None
) -> Pattern:
    """The units of the model to deliver.

    Parameters
    ----------
    width
        In thousandths: the first ``ceil(width * J_b / 1000)`` units of each block (FjORD, section 3.1).
    sparse
        Without those whose own rows are exactly zero in every tensor, for their outputs are. Each block keeps one unit
        at least, as no runtime takes a tensor without entries.
    narrowed
        The blocks that ``width`` is of; None for all.
    """
    pattern = Pattern.prefix(layout, width) if narrowed is None else Pattern.prefix_of(layout, width, narrowed)
    if not sparse:
        return pattern
    mask = pattern.mask & (unit_norms(layout, weights) > 0)
    start = 0
    for block in layout.blocks:
        mask[start] |= not mask[start : start + block.size].any()
        start += block.size
    return Pattern(layout, mask)


class Narrowed(nn.Module):
    """``[B, *input]`` to ``[B, *outputs]``, with nothing but kept units.

    Parameters
    ----------
    forward
        As :func:`exporter.extract.forward.load_forward` gives it.
    pattern
        The units to keep.
    weights
        Full tensors, of which the kept entries are copied; they are called ``weights.NAME`` in the state.
    frozen
        What the pattern leaves of every frozen tensor; called likewise.
    """

    def __init__(
        self, forward: nn.Module, pattern: Pattern, weights: Weights, frozen: Mapping[str, NDArray[Any]]
    ) -> None:
        super().__init__()
        # Not `graph`: what torch makes of this module has one, and would look for the forward's constants there.
        self.program, self.weights = forward, nn.Module()
        kept = {**Selection.of(pattern, "units").gather(weights), **frozen}
        held = (*pattern.layout.tensors, *pattern.layout.frozen)
        for tensor in held:
            path, _, last = tensor.name.rpartition(".")
            owner = _submodule(self.weights, path)
            value = torch.from_numpy(kept[tensor.name])
            if tensor.role == "statistic" or not value.is_floating_point():
                owner.register_buffer(last, value)
            else:
                owner.register_parameter(last, nn.Parameter(value, requires_grad=False))
        self._names = [tensor.name for tensor in held]

    def forward(self, x: Tensor) -> Tensor:
        """Run the model."""
        given = self.program(x, *(_read(self.weights, name) for name in self._names))
        outputs: Tensor = given if isinstance(given, Tensor) else given[0]  # bare in bundles of earlier builds
        return outputs


class ByName(nn.Module):
    """A model of several inputs, which takes them as the user's own model did, in the order of ``inputs``."""

    def __init__(self, packed: nn.Module, inputs: Sequence[NamedInput]) -> None:
        super().__init__()
        self.packed = packed
        self._dtype = getattr(torch, packed_input(inputs).dtype)

    def forward(self, *given: Tensor) -> Tensor:
        """Pack the inputs, ``[B, *shape]`` each, and run the model."""
        outputs: Tensor = self.packed(as_one(given, self._dtype))
        return outputs


def _submodule(root: nn.Module, path: str) -> nn.Module:
    for part in path.split(".") if path else ():
        if part not in dict(root.named_children()):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root


def _read(root: nn.Module, name: str) -> Tensor:
    path, _, last = name.rpartition(".")
    tensor: Tensor = getattr(root.get_submodule(path), last)
    return tensor
