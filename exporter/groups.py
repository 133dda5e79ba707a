"""Which indices of which tensors belong together, as torch-pruning's dependency graph has it.

The graph (Fang et al., "DepGraph: Towards Any Structural Pruning", CVPR 2023) follows the outputs of a layer
through the model to everything that must shrink with them. It is taken as a proposal: :mod:`exporter.derive`
keeps only what it finds to be true by running the model.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch_pruning as tp
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_fl.errors import UnsupportedModelError
from exporter.sentence import first_line

__all__ = ["Group", "propose_groups"]


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


def propose_groups(model: nn.Module, x: Tensor) -> Iterator[Group]:
    """One group for each set of linear layers that share units, in the model's order.

    Parameters
    ----------
    model
        Left as it is.
    x
        ``[B, ...]`` float32, an input to trace with.

    Raises
    ------
    UnsupportedModelError
        When the model cannot be followed.
    """
    model = copy.deepcopy(model)
    graph = _graph(model, x)
    seen: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name not in seen and module in graph.module2node:
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
            "linear layers, activations, concatenations and additions."
        ) from error


def _group(graph: tp.DependencyGraph, model: nn.Module, name: str, root: nn.Linear) -> Group:
    modules = {id(module): name for name, module in reversed(list(model.named_modules()))}
    tensors = {id(parameter): name for name, parameter in model.named_parameters()}
    group = graph.get_pruning_group(root, tp.prune_linear_out_channels, list(range(root.out_features)))
    owners: dict[tuple[str, int], NDArray[np.int64]] = {}
    own: set[tuple[str, int]] = set()
    producers, normalised_by = [], None
    for item in group:
        target, out = item.dep.target.module, graph.is_out_channel_pruning_fn(item.dep.handler)
        if isinstance(target, nn.LayerNorm):
            normalised_by = modules[id(target)]
        if not isinstance(target, nn.Linear):
            continue
        parameters = [(target.weight, 0), (target.bias, 0)] if out else [(target.weight, 1)]
        if out:
            producers.append(modules[id(target)])
        for parameter, axis in parameters:
            if parameter is not None:
                key = (tensors[id(parameter)], axis)
                owners[key] = _owners(parameter.shape[axis], item.idxs, item.root_idxs)
                own.update([key] if out else [])
    return Group(name, root.out_features, tuple(producers), owners, frozenset(own), normalised_by)


def _owners(length: int, indices: list[int], units: list[int]) -> NDArray[np.int64]:
    owners = torch.full((length,), -1, dtype=torch.int64)
    owners[indices] = torch.tensor(units, dtype=torch.int64)
    return owners.numpy()
