"""Which indices of which tensors belong together, as torch-pruning's dependency graph has it.

The graph (Fang et al., "DepGraph: Towards Any Structural Pruning", CVPR 2023) follows the outputs of a layer
through the model to everything that must shrink with them. It is taken as a proposal: :mod:`exporter.derive`
keeps only what it finds to be true by running the model.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch_pruning as tp
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_pruning.dependency import index_mapping

from edge_fl.core.errors import UnsupportedModelError
from exporter.call_limit import call_limit
from exporter.frozen import BATCH_NORMS, STATISTICS
from exporter.sentence import first_line
from exporter.stand_ins import PRUNERS, StandIn, with_stand_ins
from exporter.transposed_convolution import TRANSPOSED
from exporter.unit_axes import UnitAxes
from exporter.written_out import written_out

__all__ = ["PRODUCERS", "Group", "Proposal", "propose_groups"]

PRODUCERS = (nn.Linear, nn.Conv1d, nn.Conv2d, *TRANSPOSED, nn.Embedding)
"""Layers whose outputs are droppable units."""
# To follow the units of a layer, and the whole graph; 50 residual blocks take 40 thousand and 120 thousand.
_LAYER_CALLS, _GRAPH_CALLS = 250_000, 20_000_000
_INDEX_RULE = re.compile(r"update_\w+_index_mapping")


@dataclass(frozen=True)
class Group:
    """Units that would be dropped together.

    ``owners`` says for an axis of a tensor which unit owns each of its indices, -1 for none; ``own`` are the axes
    of the units' own rows, a subset of its keys. ``producers`` are the layers whose outputs the units are, of which one
    may be ``recurrent``. Units may be ``heads`` of attention, whose queries and keys no method scales.
    """

    name: str
    size: int
    producers: tuple[str, ...]
    owners: dict[tuple[str, int], NDArray[np.int64]]
    own: frozenset[tuple[str, int]]
    normalised_by: str | None = None
    recurrent: bool = False
    heads: bool = False

    def coarse(self, width: int) -> "Group":
        """The same with every ``width`` neighbouring units made one."""
        owners = {key: np.where(units < 0, units, units // width) for key, units in self.owners.items()}
        return replace(self, size=self.size // width, owners=owners)


class Proposal(NamedTuple):
    """Groups in the model's order; layers whose units nobody could follow, each with the reason; and how many features
    heads of attention have.
    """

    groups: list[Group]
    unfollowed: dict[str, str]
    head_sizes: tuple[int, ...] = ()


def propose_groups(model: nn.Module, x: Tensor) -> Proposal:
    """One group for each set of layers that share units.

    Parameters
    ----------
    model
        Left as it is.
    x
        ``[B, ...]``, an input to trace with.

    Raises
    ------
    UnsupportedModelError
        When the model cannot be followed at all.
    """
    stood = with_stand_ins(model).requires_grad_()  # the graph is read from gradients' edges, of frozen layers too
    with _unmapped_where_wrong():
        return _proposal(stood, x)


def _proposal(stood: nn.Module, x: Tensor) -> Proposal:
    graph, head_sizes = _graph(stood, x)
    found, seen = Proposal([], {}), set[str]()
    for name, module in stood.named_modules():
        if isinstance(module, StandIn):
            inner = (axes for axes in module.axes if axes.outputs is None)
            found.groups.extend(map(_inner, inner))
        if not isinstance(module, (*PRODUCERS, StandIn)) or name in seen or module not in graph.module2node:
            continue
        for part in _parts(graph, module, name):
            try:
                with call_limit(_LAYER_CALLS):
                    group = _group(graph, stood, module, part)
            except Exception as error:  # torch-pruning raises many types where it counts wrongly
                found.unfollowed[name] = f"its units cannot be followed ({first_line(error)})"
                continue
            seen.update(group.producers)
            found.groups.append(group)
    layers = {name: module.layer for name, module in stood.named_modules() if isinstance(module, StandIn)}
    groups = [replace(g, producers=_called(g.producers, layers)) for g in found.groups]
    followed = {*_called(seen, layers)}
    unfollowed = {layers.get(name, name): why for name, why in found.unfollowed.items() if name not in seen}
    return Proposal(groups, {name: why for name, why in unfollowed.items() if name not in followed}, head_sizes)


def _called(producers: Iterable[str], layers: dict[str, str]) -> tuple[str, ...]:
    """The producers as the model has them, each once: a stand-in may be a part of a layer."""
    return tuple(dict.fromkeys(layers.get(name, name) for name in producers))


@dataclass(frozen=True)
class _Part:
    """The outputs ``start`` to ``stop`` of a layer, which are units of one block."""

    name: str
    start: int
    stop: int


def _parts(graph: tp.DependencyGraph, module: nn.Module, name: str) -> list[_Part]:
    if isinstance(module, StandIn):
        return [_Part(a.name, a.outputs.start, a.outputs.stop) for a in module.axes if a.outputs is not None]
    return [_Part(name, 0, graph.get_pruner_of_module(module).get_out_channels(module))]


def _inner(axes: UnitAxes) -> Group:
    """Units that only layers of their own module read."""
    producers = (axes.name,) if axes.is_layer else ()
    return Group(axes.name, axes.size, producers, dict(axes.owners), axes.own)


def _graph(model: nn.Module, x: Tensor) -> tuple[tp.DependencyGraph, tuple[int, ...]]:
    """torch-pruning's graph, and the features of each head of attention that ran."""
    try:
        with call_limit(_GRAPH_CALLS), written_out() as attention:
            graph = tp.DependencyGraph().build_dependency(
                model,
                example_inputs=x,
                forward_fn=lambda m, inputs: m(inputs),
                customized_pruners=PRUNERS,
                verbose=False,
            )
            return graph, tuple(attention.head_sizes)
    except Exception as error:  # torch-pruning raises many types on operations it cannot follow
        raise _not_followed(first_line(error)) from error


@contextmanager
def _unmapped_where_wrong() -> Iterator[None]:
    """Indices pass unchanged where torch-pruning cannot say how an operation moves them, such as a channel shuffle.

    The units behind are then proposed wrongly, which running the model shows.
    """
    rules = {name: rule for name, rule in vars(index_mapping).items() if _INDEX_RULE.fullmatch(name)}
    for name, rule in rules.items():
        setattr(index_mapping, name, _forgiving(rule))
    try:
        yield
    finally:
        for name, rule in rules.items():
            setattr(index_mapping, name, rule)


def _forgiving(rule: Callable[..., None]) -> Callable[..., None]:
    def forgiving(graph: tp.DependencyGraph, node: Any) -> None:
        with suppress(ArithmeticError, TypeError, IndexError, ValueError):
            rule(graph, node)

    return forgiving


def _not_followed(reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The model's structure cannot be followed ({reason}): write its forward with torch's layers, activations, "
        "concatenations and additions, or give the module an 'edge_fl_layout'."
    )


def _group(graph: tp.DependencyGraph, model: nn.Module, root: nn.Module, part: _Part) -> Group:
    modules = {id(module): name for name, module in reversed(list(model.named_modules()))}
    tied = _first_names(model)
    pruner = graph.get_pruner_of_module(root)
    group = graph.get_pruning_group(root, pruner.prune_out_channels, list(range(part.start, part.stop)))
    owners: dict[tuple[str, int], NDArray[np.int64]] = {}
    own: set[tuple[str, int]] = set()
    producers, normalised_by, width, recurrent = [], None, 1, False
    for item in group:
        target, out = item.dep.target.module, graph.is_out_channel_pruning_fn(item.dep.handler)
        units = np.array(item.root_idxs) - part.start
        if isinstance(target, nn.LayerNorm):
            normalised_by = modules[id(target)]
        if isinstance(target, nn.GroupNorm):
            width = max(width, target.num_channels // target.num_groups)
        if isinstance(target, (*PRODUCERS, StandIn)) and out:
            producers.append(modules[id(target)])
            recurrent |= isinstance(target, StandIn) and target.recurrent
        for owned in _owned(target, modules, np.array(item.idxs), units, out=out):
            key = (tied.get(owned.key[0], owned.key[0]), owned.key[1])
            held = owners.setdefault(key, np.full(len(owned.units), -1, dtype=np.int64))
            held[owned.units >= 0] = owned.units[owned.units >= 0]
            own.update([key] if owned.row else [])
    size = part.stop - part.start
    names = tuple(dict.fromkeys(producers))
    return Group(part.name, size, names, owners, frozenset(own), normalised_by, recurrent).coarse(width)


def _first_names(model: nn.Module) -> dict[str, str]:
    """By each name of a parameter the one that it has in a layout: a tied tensor is stored once."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    return {name: first[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}


@dataclass(frozen=True)
class _Owned:
    """Who owns each index of an axis of a tensor (-1 for nobody), and whether these are the units' own rows."""

    key: tuple[str, int]
    units: NDArray[np.int64]
    row: bool


def _owned(
    module: nn.Module, names: dict[int, str], indices: NDArray[np.int64], units: NDArray[np.int64], *, out: bool
) -> Iterator[_Owned]:
    """What of a module's tensors follows the channels ``indices`` of its outputs or inputs, which are ``units``."""
    if isinstance(module, StandIn) and out:
        for axes in module.axes:
            if axes.outputs is not None:
                mapped = np.full(axes.size, -1, dtype=np.int64)
                here = (indices >= axes.outputs.start) & (indices < axes.outputs.stop)
                mapped[indices[here] - axes.outputs.start] = units[here]
                for key, owners in axes.owners.items():
                    yield _Owned(key, np.where(owners < 0, -1, mapped[owners]), key in axes.own)
        return
    if isinstance(module, StandIn):
        found = [(reader, module.inputs, module.reading, False) for reader in module.readers]
    else:
        prefix = f"{names[id(module)]}." if id(module) in names and names[id(module)] else ""
        found = [(prefix + name, length, axis, row) for name, length, axis, row in _axes(module, out=out)]
    for name, length, axis, row in found:
        owners = np.full(length, -1, dtype=np.int64)
        owners[indices] = units
        yield _Owned((name, axis), owners, row)


def _axes(module: nn.Module, *, out: bool) -> list[tuple[str, int, int, bool]]:
    """The tensors and axes of a module that follow its outputs or its inputs: name, length, axis, own row or not."""
    followed: list[tuple[str, int, bool]] = []
    if isinstance(module, nn.Embedding):
        followed = [("weight", 1, True)] if out else []
    elif isinstance(module, TRANSPOSED):
        followed = [("weight", 1, True), ("bias", 0, True)] if out else [("weight", 0, False)]
    elif isinstance(module, nn.Conv1d | nn.Conv2d) and module.groups > 1:
        followed = [("weight", 0, True), ("bias", 0, True)]  # depthwise: out and in are one
    elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
        followed = [("weight", 0, True), ("bias", 0, True)] if out else [("weight", 1, False)]
    elif isinstance(module, (*BATCH_NORMS, nn.GroupNorm)):
        followed = [(name, 0, True) for name in ("weight", "bias", *STATISTICS)]
    tensors = [(name, getattr(module, name, None), axis, row) for name, axis, row in followed]
    return [(name, t.shape[axis], axis, row) for name, t, axis, row in tensors if t is not None]
