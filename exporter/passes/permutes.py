"""Permutation sinking: ``[C, H, W, B]`` survives from one convolution to the next.

A permutation of axes is not computed where it is written: the values behind it travel on together with the order of
axes they are to be seen in. Operations on single elements, reductions, paddings, cuts, concatenations and reshapes
that keep the axes apart are computed in the order the values have; two permutations become one, and opposite ones
none. Only where an operation needs its axes in their written order is the permutation computed.

Where operands disagree, those already batch-last win, and the others are permuted to match.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

__all__ = ["AxisGroups", "axis_groups", "sink_permutes"]

_aten = torch.ops.aten
_VIEWS = (_aten.view.default, _aten._unsafe_view.default)
_Order = tuple[int, ...]


@dataclass(frozen=True)
class _Seen:
    """A tensor that is ``base`` with axes in another order: axis i is axis ``order[i]`` of ``base``."""

    base: Node
    order: _Order


def sink_permutes(graph: Graph) -> None:
    """Move permutations towards the outputs until they meet their opposites."""
    _Sinking(graph).run()


class _Sinking:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.seen: dict[Node, _Seen] = {}
        self.computed: dict[tuple[Node, _Order], Node] = {}

    def run(self) -> None:
        for node in list(self.graph.nodes):
            rule = _rule(node)
            with self.graph.inserting_before(node):
                moved = rule(self, node) if rule else None
                if moved is None:
                    self._settle(node)
                else:
                    self.seen[node] = moved

    def _settle(self, node: Node) -> None:
        """Give ``node`` its operands in their written order."""
        if node.target in _VIEWS:
            node.target = _aten.reshape.default  # its operand may lie in memory in another order now
        replaced = {operand: self._written(operand) for operand in node.all_input_nodes if operand in self.seen}
        for operand, written in replaced.items():
            node.replace_input_with(operand, written)

    def _written(self, node: Node) -> Node:
        seen = self.seen[node]
        return self.permuted(seen.base, seen.order)

    def permuted(self, base: Node, order: _Order) -> Node:
        """``base`` with its axes in ``order``, computed once."""
        if order == tuple(range(len(order))):
            return base
        if (base, order) not in self.computed:
            self.computed[base, order] = self.graph.call_function(_aten.permute.default, (base, list(order)))
        return self.computed[base, order]

    def view(self, node: Node) -> _Seen:
        """The values behind a tensor, and how they are seen."""
        return self.seen.get(node) or _Seen(node, tuple(range(_rank(node))))

    def call(self, node: Node, *args: Any) -> Node:
        """``node``'s operation on other arguments."""
        return self.graph.call_function(node.target, args, dict(node.kwargs))  # type: ignore[arg-type]


def _permute(sinking: _Sinking, node: Node) -> _Seen | None:
    source = sinking.view(node.args[0])  # type: ignore[arg-type]
    rank = len(source.order)
    if node.target is _aten.permute.default:
        order = [axis % rank for axis in _listed(node.args[1])]
    else:
        order = list(range(rank))
        axes: Any = (0, 1) if node.target is _aten.t.default else node.args[1:3]
        if rank > 1:
            order[axes[0]], order[axes[1]] = order[axes[1]], order[axes[0]]
    if rank > 2 and source.base is node.args[0] and order == [*range(1, rank), 0]:
        return None  # nothing to cancel: what is unfolded next should be so batch-last, not before
    return _Seen(source.base, tuple(source.order[axis] for axis in order))


def _same(sinking: _Sinking, node: Node) -> _Seen:
    """A copy of equal values."""
    return sinking.view(node.args[0])  # type: ignore[arg-type]


def _pointwise(sinking: _Sinking, node: Node) -> _Seen | None:
    operands = [operand for operand in node.all_input_nodes if _is_tensor(operand)]
    rank = _rank(node)
    orders = {sinking.seen[o].order for o in operands if o in sinking.seen and _rank(o) == rank}
    whole = any(_full(operand, node) for operand in operands if operand not in sinking.seen)
    chosen = _chosen(orders, rank, mixed=len(orders) > 1 or whole)
    if chosen is None or any(_rank(operand) not in (0, rank) for operand in operands):
        return None
    back = tuple(chosen.index(axis) for axis in range(rank))

    def matched(argument: Any) -> Any:
        if not isinstance(argument, Node) or not _is_tensor(argument) or _rank(argument) != rank:
            return argument
        view = sinking.view(argument)
        return sinking.permuted(view.base, tuple(view.order[axis] for axis in back))

    return _Seen(sinking.call(node, *(matched(argument) for argument in node.args)), chosen)


def _chosen(orders: set[_Order], rank: int, *, mixed: bool) -> _Order | None:
    """The order to compute in: the only one there is, or of several that of batch-last values."""
    batch_last = (rank - 1, *range(rank - 1))
    if batch_last in orders:
        return batch_last
    return None if mixed or len(orders) != 1 else next(iter(orders))


def _full(operand: Node, result: Node) -> bool:
    """Whether permuting the operand would cost as much as permuting the result."""
    shape, whole = operand.meta["val"].shape, result.meta["val"].shape
    return len(shape) == len(whole) and all(
        statically_known_true(a == b) for a, b in zip(shape, whole, strict=True)
    )


def _reduction(sinking: _Sinking, node: Node) -> _Seen | None:
    source = sinking.seen.get(node.args[0])  # type: ignore[arg-type]
    if source is None:
        return None
    if len(node.args) < 2 or not node.args[1]:  # over everything, in whatever order
        return _Seen(sinking.call(node, source.base, *node.args[1:]), ()) if _rank(node) == 0 else None
    rank = len(source.order)
    axes = [axis % rank for axis in _listed(node.args[1])]
    moved = sorted(source.order[axis] for axis in axes)
    result = sinking.call(node, source.base, moved, *node.args[2:])
    if len(node.args) > 2 and node.args[2]:
        return _Seen(result, source.order)
    kept = [axis for axis in range(rank) if axis not in moved]
    return _Seen(result, tuple(kept.index(source.order[axis]) for axis in range(rank) if axis not in axes))


def _pad(sinking: _Sinking, node: Node) -> _Seen | None:
    source = sinking.seen.get(node.args[0])  # type: ignore[arg-type]
    if source is None:
        return None
    rank = len(source.order)
    flat: list[Any] = list(node.args[1])  # type: ignore[arg-type]
    pairs = [(flat[2 * i], flat[2 * i + 1]) for i in range(len(flat) // 2)]
    by_axis = dict(zip(range(rank - 1, -1, -1), pairs, strict=False))
    by_base = {source.order[axis]: pair for axis, pair in by_axis.items()}
    moved = [value for axis in range(rank - 1, -1, -1) for value in by_base.get(axis, (0, 0))]
    return _Seen(sinking.call(node, source.base, moved, *node.args[2:]), source.order)


def _cut(sinking: _Sinking, node: Node) -> _Seen | None:
    source = sinking.seen.get(node.args[0])  # type: ignore[arg-type]
    if source is None:
        return None
    axis = _axis(node, len(source.order))
    return _Seen(sinking.call(node, source.base, source.order[axis], *node.args[2:]), source.order)


def _cat(sinking: _Sinking, node: Node) -> _Seen | None:
    parts: list[Node] = list(node.args[0])  # type: ignore[arg-type]
    rank = _rank(node)
    orders = {sinking.view(part).order for part in parts}
    chosen = next(iter(orders)) if len(orders) == 1 else _chosen(orders, rank, mixed=True)
    if chosen is None or chosen == tuple(range(rank)):
        return None
    back = tuple(chosen.index(axis) for axis in range(rank))
    views = [sinking.view(part) for part in parts]
    moved = [sinking.permuted(view.base, tuple(view.order[axis] for axis in back)) for view in views]
    axis = _axis(node, rank)
    return _Seen(sinking.call(node, moved, chosen[axis]), chosen)


def _reshape(sinking: _Sinking, node: Node) -> _Seen | None:
    """Axes that are merged or split stay neighbours in ``base``: the reshape goes below the permutation."""
    source = sinking.seen.get(node.args[0])  # type: ignore[arg-type]
    sizes: Any = node.args[1]
    if source is None:
        return None
    groups = axis_groups(list(node.args[0].meta["val"].shape), list(node.meta["val"].shape))  # type: ignore
    if groups is None:
        return None
    placed = []
    for before, after in groups:
        places = [source.order[axis] for axis in before]
        if places != list(range(places[0], places[0] + len(places))):
            return None
        placed.append((places[0], after))
    ordered = [axis for _, after in sorted(placed) for axis in after]
    moved = sinking.graph.call_function(_aten.reshape.default, (source.base, [sizes[axis] for axis in ordered]))
    return _Seen(moved, tuple(ordered.index(axis) for axis in range(len(sizes))))


AxisGroups = Sequence[tuple[list[int], list[int]]]


def axis_groups(before: Sequence[Any], after: Sequence[Any]) -> AxisGroups | None:
    """Runs of axes of one shape and the runs of the other that hold the same entries; None when it cannot be told."""
    groups = []
    i = j = 0
    while i < len(before) and j < len(after):
        left, right, a, b = [i], [j], before[i], after[j]
        while not statically_known_true(a == b):
            grow_left = statically_known_true(a < b) or (not statically_known_true(b < a) and _divides(a, b))
            if grow_left and i + 1 < len(before):
                i += 1
                left.append(i)
                a = a * before[i]
            elif not grow_left and j + 1 < len(after):
                j += 1
                right.append(j)
                b = b * after[j]
            else:
                return None
        groups.append((left, right))
        i, j = i + 1, j + 1
    if i == len(before) and j == len(after):
        return groups
    return None


def _divides(a: Any, b: Any) -> bool:
    return statically_known_true(b % a == 0)


_Rule = Callable[[_Sinking, Node], _Seen | None]
_RULES: dict[Any, _Rule] = {
    _aten.permute.default: _permute,
    _aten.transpose.int: _permute,
    _aten.t.default: _permute,
    _aten.clone.default: _same,
    _aten.detach.default: _same,
    _aten.alias.default: _same,
    _aten.sum.dim_IntList: _reduction,
    _aten.sum.default: _reduction,
    _aten.mean.dim: _reduction,
    _aten.mean.default: _reduction,
    _aten.amax.default: _reduction,
    _aten.constant_pad_nd.default: _pad,
    _aten.slice.Tensor: _cut,
    _aten.cat.default: _cat,
    _aten.view.default: _reshape,
    _aten.reshape.default: _reshape,
    _aten._unsafe_view.default: _reshape,
}


def _rule(node: Node) -> _Rule | None:
    if node.op != "call_function" or not _is_tensor(node):
        return None
    if node.target in _RULES:
        return _RULES[node.target]
    if torch.Tag.pointwise in getattr(node.target, "tags", ()) and node.target is not operator.getitem:
        return _pointwise
    return None


def _listed(axes: Any) -> list[int]:
    return list(axes) if isinstance(axes, Sequence) else [axes]


def _axis(node: Node, rank: int) -> int:
    """The second argument, 0 unless given."""
    axis: Any = node.args[1] if len(node.args) > 1 else 0
    return int(axis) % rank


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def _rank(node: Node) -> int:
    rank: int = node.meta["val"].dim()
    return rank
