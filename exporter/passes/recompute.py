"""Activations computed a second time where the backward pass reads them, so that none lives from one to the other.

[Training deep nets with sublinear memory cost](https://arxiv.org/abs/1604.06174): what enters a block is kept. The
second time, the block computes from what enters it plus a zero that comes of a gradient: a runtime can neither run it
before the backward pass has come there, nor take it for what the forward pass has computed.
"""

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from exporter.checkpoint import mark_of
from exporter.passes.values import fill_values

__all__ = ["recompute_blocks"]

_aten = torch.ops.aten


def recompute_blocks(graph: Graph) -> None:
    """Change the graph of a step so that its marked blocks (:mod:`exporter.checkpoint`) run twice."""
    places = {node: place for place, node in enumerate(graph.nodes)}
    forward = [node for node in places if mark_of(node) is not None]
    blocks: dict[int, set[Node]] = {}
    for node in forward:
        mark = mark_of(node)
        if mark is not None and mark.block is not None and _gives_tensors(node):
            blocks.setdefault(mark.block, set()).add(node)
    if not blocks:
        return
    end = places[forward[-1]]
    late = _after(places, max(places[node] for inside in blocks.values() for node in inside))
    for inside in blocks.values():
        readers = {user for node in inside for user in node.users if places.get(user, -1) > end}
        if readers:
            first = min(readers, key=places.__getitem__)
            _recompute(graph, inside, readers, [node for node in late if places[node] < places[first]][-1])
    fill_values(graph, late[0].meta["val"].fake_mode)


def _after(places: dict[Node, int], last: int) -> list[Node]:
    """In order, what depends on the forward pass after its ``last`` block: the loss, then gradients."""
    found: dict[Node, None] = {}
    for node, place in places.items():
        at_end = place > last and mark_of(node) is not None
        if at_end or any(source in found for source in node.all_input_nodes):
            found[node] = None
    return [node for node in found if _is_number(node)]


def _recompute(graph: Graph, inside: set[Node], readers: set[Node], first: Node) -> None:
    """Copy what ``readers`` need of the operations ``inside`` a block to the first of them, to run after ``first``."""
    needed, waiting = set[Node](), [node for node in inside if not readers.isdisjoint(node.users)]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += [source for source in node.all_input_nodes if source in inside]
    nodes = list(graph.nodes)
    made: dict[Node, Node] = {}
    with graph.inserting_before(next(node for node in nodes if node in readers)):
        zero = _zero(graph, first)
        for node in nodes:
            if node not in needed:
                continue
            for source in node.all_input_nodes:
                mark = mark_of(source)
                if source not in made and mark is not None and mark.enters:
                    made[source] = graph.call_function(_aten.add.Tensor, (source, zero))
            made[node] = graph.node_copy(node, lambda each: made.get(each, each))
    for reader in readers:
        for node in needed:
            reader.replace_input_with(node, made[node])


def _zero(graph: Graph, first: Node) -> Node:
    """0 (``[1]``), known as soon as ``first`` is, whatever that is: not a number, too."""
    flat = graph.call_function(_aten.reshape.default, (first, [-1]))
    number = graph.call_function(_aten.slice.Tensor, (flat, 0, 0, 1))
    known = graph.call_function(_aten.ge.Scalar, (number, 0.0))
    wide = graph.call_function(_aten._to_copy.default, (known,), {"dtype": torch.float32})
    return graph.call_function(_aten.mul.Tensor, (wide, 0.0))


def _gives_tensors(node: Node) -> bool:
    values = pytree.tree_leaves(node.meta.get("val"))
    return node.op == "call_function" and any(isinstance(value, Tensor) for value in values)


def _is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return node.op == "call_function" and isinstance(value, Tensor) and value.is_floating_point()
