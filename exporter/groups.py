"""Which indices of which tensors belong together, as torch-pruning's dependency graph has it.

The graph (Fang et al., "DepGraph: Towards Any Structural Pruning", CVPR 2023) follows the outputs of a layer
through the model to everything that must shrink with them. It is taken as a proposal: :mod:`exporter.derive`
keeps only what it finds to be true by running the model.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch_pruning as tp
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_fl.errors import UnsupportedModelError
from exporter.sentence import first_line

__all__ = ["PRODUCERS", "Group", "propose_groups"]

PRODUCERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding)
"""Layers whose outputs are droppable units."""
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass(frozen=True)
class Group:
    """Units that would be dropped together.

    ``owners`` says for an axis of a tensor which unit owns each of its indices, -1 for none; ``own`` are the axes
    of the units' own rows, a subset of its keys. ``producers`` are the layers whose outputs the units are.
    """

    name: str
    size: int
    producers: tuple[str, ...]
    owners: dict[tuple[str, int], NDArray[np.int64]]
    own: frozenset[tuple[str, int]]
    normalised_by: str | None = None

    def coarse(self, width: int) -> "Group":
        """The same with every ``width`` neighbouring units made one."""
        owners = {key: np.where(units < 0, units, units // width) for key, units in self.owners.items()}
        return replace(self, size=self.size // width, owners=owners)


def propose_groups(model: nn.Module, x: Tensor) -> Iterator[Group]:
    """One group for each set of layers that share units, in the model's order.

    Parameters
    ----------
    model
        Left as it is.
    x
        ``[B, ...]``, an input to trace with.

    Raises
    ------
    UnsupportedModelError
        When the model cannot be followed.
    """
    model = copy.deepcopy(model)
    graph = _graph(model, x)
    seen: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, PRODUCERS) and name not in seen and module in graph.module2node:
            group = _group(graph, model, name, module)
            seen.update(group.producers)
            yield group


def _graph(model: nn.Module, x: Tensor) -> tp.DependencyGraph:
    try:
        return tp.DependencyGraph().build_dependency(
            model, example_inputs=x, forward_fn=lambda m, inputs: m(inputs), verbose=False
        )
    except Exception as error:  # torch-pruning raises many types on operations it cannot follow
        raise UnsupportedModelError(
            f"The model's structure cannot be followed ({first_line(error)}): write its forward with "
            "torch's layers, activations, concatenations and additions, or declare its layout in the model file."
        ) from error


def _group(graph: tp.DependencyGraph, model: nn.Module, name: str, root: nn.Module) -> Group:
    modules = {id(module): name for name, module in reversed(list(model.named_modules()))}
    pruner = graph.get_pruner_of_module(root)
    size = pruner.get_out_channels(root)
    group = graph.get_pruning_group(root, pruner.prune_out_channels, list(range(size)))
    tensors = {id(tensor): name for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    owners: dict[tuple[str, int], NDArray[np.int64]] = {}
    own: set[tuple[str, int]] = set()
    producers, normalised_by, width = [], None, 1
    for item in group:
        target, out = item.dep.target.module, graph.is_out_channel_pruning_fn(item.dep.handler)
        if isinstance(target, nn.LayerNorm):
            normalised_by = modules[id(target)]
        if isinstance(target, nn.GroupNorm):
            width = max(width, target.num_channels // target.num_groups)
        if isinstance(target, PRODUCERS) and out:
            producers.append(modules[id(target)])
        for tensor, axis, row in _axes(target, out=out):
            key = (tensors[id(tensor)], axis)
            units = owners.setdefault(key, np.full(tensor.shape[axis], -1, dtype=np.int64))
            units[item.idxs] = item.root_idxs
            own.update([key] if row else [])
    found = Group(name, size, tuple(dict.fromkeys(producers)), owners, frozenset(own), normalised_by)
    return found.coarse(width)


def _axes(module: nn.Module, *, out: bool) -> list[tuple[Tensor, int, bool]]:
    """The axes of a module's tensors that follow its outputs or its inputs, and whether they are its own rows."""
    found: list[tuple[Tensor | None, int, bool]] = []
    if isinstance(module, nn.Embedding):
        found = [(module.weight, 1, True)] if out else []
    elif isinstance(module, nn.Conv1d | nn.Conv2d) and module.groups > 1:
        found = [(module.weight, 0, True), (module.bias, 0, True)]  # depthwise: out and in are one
    elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
        found = [(module.weight, 0, True), (module.bias, 0, True)] if out else [(module.weight, 1, False)]
    elif isinstance(module, (*_BATCH_NORMS, nn.GroupNorm)):
        tensors = [*module.parameters(), *(b for b in module.buffers() if b.dim() == 1)]
        found = [(tensor, 0, True) for tensor in tensors]
    return [(tensor, axis, row) for tensor, axis, row in found if tensor is not None]
