"""Activations computed a second time where the backward pass reads them, so that none lives from one to the other.

[Training deep nets with sublinear memory cost](https://arxiv.org/abs/1604.06174): what enters a block is kept. The
second time, the block computes from what enters it plus a zero that comes of a gradient: a runtime can neither run it
before the backward pass has come there, nor take it for what the forward pass has computed.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from exporter.checkpoint import mark_of
from exporter.passes.values import fill_values

__all__ = ["recompute_blocks"]

_aten = torch.ops.aten
_DTYPES = (torch.float32, torch.int64)
"""What a zero can be added to."""


def recompute_blocks(graph: Graph) -> None:
    """Change the graph of a step so that its marked blocks (:mod:`exporter.checkpoint`) run twice."""
    passes: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if (mark := mark_of(node)) is not None:
            passes.setdefault(mark.forward, []).append(node)
    for nodes in passes.values():
        _recompute_pass(graph, nodes)


def _recompute_pass(graph: Graph, forward: Sequence[Node]) -> None:
    """The blocks of one forward pass."""
    places = {node: place for place, node in enumerate(graph.nodes)}
    given = _after(node for node in places if (mark := mark_of(node)) is not None and mark.enters)
    blocks: dict[int, set[Node]] = {}
    for node in forward:
        mark = mark_of(node)
        if mark is not None and mark.block is not None and node in given and _gives_tensors(node):
            blocks.setdefault(mark.block, set()).add(node)
    if not blocks:
        return
    end, last = places[forward[-1]], max(places[node] for inside in blocks.values() for node in inside)
    late = sorted(
        filter(_is_number, _after(node for node in forward if places[node] >= last)), key=places.__getitem__
    )
    for inside in blocks.values():
        readers = {user for node in inside for user in node.users if places.get(user, -1) > end}
        if readers:
            first = min(readers, key=places.__getitem__)
            known = [node for node in late if places[node] < places[first]]
            _recompute(graph, (inside, given), readers, known[-1])
    fill_values(graph, late[0].meta["val"].fake_mode)


def _after(nodes: Iterable[Node]) -> set[Node]:
    """These and all that is computed from them."""
    found, waiting = set[Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.users
    return found


def _recompute(graph: Graph, block: tuple[set[Node], set[Node]], readers: set[Node], first: Node) -> None:
    """Copy what ``readers`` need of a block to the first of them, to run after ``first``.

    The block is the operations inside it, and all those that hang on what the model is given.
    """
    inside, given = block
    needed, waiting = set[Node](), [node for node in inside if not readers.isdisjoint(node.users)]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += [source for source in node.all_input_nodes if source in inside]
    nodes = list(graph.nodes)
    made: dict[Node, Node] = {}
    with graph.inserting_before(next(node for node in nodes if node in readers)):
        zeros = _zeros(graph, first)
        for node in nodes:
            if node not in needed:
                continue
            for source in node.all_input_nodes:
                if source not in made and source not in needed and source in given and _takes_zero(source):
                    made[source] = _plus_zero(graph, source, zeros)
            made[node] = graph.node_copy(node, lambda each: made.get(each, each))
    for reader in readers:
        for node in needed:
            reader.replace_input_with(node, made[node])


def _zeros(graph: Graph, first: Node) -> dict[torch.dtype, Node]:
    """0 (``[1]``) of each dtype, known as soon as ``first`` is, whatever that is: not a number, too."""
    flat = graph.call_function(_aten.reshape.default, (first, [-1]))
    number = graph.call_function(_aten.slice.Tensor, (flat, 0, 0, 1))
    known = graph.call_function(_aten.ge.Scalar, (number, 0.0))
    wide = {dtype: graph.call_function(_aten._to_copy.default, (known,), {"dtype": dtype}) for dtype in _DTYPES}
    return {dtype: graph.call_function(_aten.mul.Tensor, (each, 0)) for dtype, each in wide.items()}


def _plus_zero(graph: Graph, source: Node, zeros: Mapping[torch.dtype, Node]) -> Node:
    value = source.meta["val"]
    zero = zeros[value.dtype]
    if not value.dim():
        zero = graph.call_function(_aten.reshape.default, (zero, []))
    return graph.call_function(_aten.add.Tensor, (source, zero))


def _takes_zero(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype in _DTYPES


def _gives_tensors(node: Node) -> bool:
    values = pytree.tree_leaves(node.meta.get("val"))
    return node.op == "call_function" and any(isinstance(value, Tensor) for value in values)


def _is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return node.op == "call_function" and isinstance(value, Tensor) and value.is_floating_point()
