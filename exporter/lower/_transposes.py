"""Transposed matrices and their reshapes, of which a train step needs several: each is made once.

The gradient of a dense layer's weight takes the gradient of its outputs transposed, that of its inputs takes the latter
as it is, and that of the bias sums the same rows.
"""

from typing import Any

import torch
from torch.fx import Graph, Node

from exporter.lower._reshapes import reshaped
from exporter.passes.common import share_common

__all__ = ["share_transposes"]

_aten = torch.ops.aten
_ACROSS = [0, 2, 1]
_MOVES = (_aten.reshape.default, _aten.permute.default)


def share_transposes(graph: Graph) -> None:
    """Write reshapes and transposes alike, so that equal ones are found, and sum rows of what is transposed anyway."""
    for node in graph.find_nodes(op="call_function", target=_aten.permute.default):
        _reshape_plainly(graph, node)
    share_common(graph, _MOVES)
    permuted = graph.find_nodes(op="call_function", target=_aten.permute.default)
    transposed = {node.args[0] for node in permuted if list(node.args[1]) == _ACROSS}
    for node in graph.find_nodes(op="call_function", target=_aten.bmm.default):
        ones, values = node.args
        if values in transposed and ones.target is _aten.full.default and ones.meta["val"].shape[:2] == (1, 1):
            _sum_transposed(graph, node)
    share_common(graph, _MOVES)


def _reshape_plainly(graph: Graph, node: Node) -> None:
    """A permuted reshape has its axes of one entry in front, as a product's operand has."""
    source: Any = node.args[0]
    if source.target is not _aten.reshape.default:
        return
    shape, order = source.meta["val"].shape, [axis % len(node.args[1]) for axis in node.args[1]]  # type: ignore
    long = [axis for axis, size in enumerate(shape) if size != 1]
    ones = len(shape) - len(long)
    plain = [1] * ones + [shape[axis] for axis in long]
    if plain == list(shape):
        return
    free = iter(range(ones))
    with graph.inserting_before(node):
        plainly = reshaped(graph, source.args[0], plain)
    node.args = (plainly, [ones + long.index(axis) if axis in long else next(free) for axis in order])


def _sum_transposed(graph: Graph, node: Node) -> None:
    """XNNPACK packs a product's second operand, which is a column then and no matrix."""
    ones, values = node.args
    with graph.inserting_before(node):
        column = reshaped(graph, ones, [1, ones.meta["val"].shape[2], 1])  # type: ignore[union-attr, arg-type]
        across = _call(graph, _aten.permute.default, values, _ACROSS)
        total = reshaped(graph, _call(graph, _aten.bmm.default, across, column), list(node.meta["val"].shape))
    node.replace_all_uses_with(total)
    graph.erase_node(node)


def _call(graph: Graph, target: Any, *args: Any) -> Node:
    made = graph.call_function(target, args)
    made.meta["val"] = target(*(arg.meta["val"] if isinstance(arg, Node) else arg for arg in args))
    return made
