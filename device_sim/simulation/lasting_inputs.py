"""Views of inputs whose memory stays where it is: a traced step need not make them again at every call."""

from collections.abc import Collection

import torch
from torch.fx import Graph, Node

__all__ = ["take_out_views"]

_aten = torch.ops.aten
_VIEWS = (
    _aten.view.default,
    _aten.permute.default,
    _aten.transpose.int,
    _aten.t.default,
    _aten.unsqueeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.expand.default,
    _aten.select.int,
    _aten.slice.Tensor,
)
"""Operations that never copy: what they give lies in the memory of their first operand."""


def take_out_views(graph: Graph, lasting: Collection[Node]) -> Graph:
    """Have ``graph`` take views of its ``lasting`` inputs as further inputs; give the graph that makes them.

    That graph takes the lasting inputs in order. It returns a tuple of the views, in the order of the new placeholders.
    """
    views = Graph()
    made = {node: views.placeholder(node.name) for node in graph.nodes if node in lasting}
    taken: list[Node] = []
    for node in graph.nodes:
        if node.target in _VIEWS and node.args[0] in made:
            made[node] = views.node_copy(node, made.__getitem__)
            taken.append(node)
    further = [node for node in taken if any(user not in made for user in node.users)]
    views.output(tuple(made[node] for node in further))
    body = next(node for node in graph.nodes if node.op != "placeholder")
    for node in further:
        with graph.inserting_before(body):
            given = graph.placeholder(f"{node.name}_once")
        given.meta = node.meta
        node.replace_all_uses_with(given)
    for node in reversed(taken):
        graph.erase_node(node)
    return views
