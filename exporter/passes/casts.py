"""Weights widened where they are used: a copy in float32 that forward and backward share would live the whole step."""

import torch
from torch.fx import Graph, Node

__all__ = ["widen_at_each_use"]


def widen_at_each_use(graph: Graph) -> None:
    """Give each reader of an input of float16 a cast of its own, so that the wide copy is free after it."""
    for node in list(graph.nodes):
        if not _widens(node):
            continue
        for user in list(node.users)[1:]:
            with graph.inserting_before(user):
                own = graph.node_copy(node)
            user.replace_input_with(node, own)


def _widens(node: Node) -> bool:
    if node.target is not torch.ops.aten._to_copy.default or node.kwargs.get("dtype") != torch.float32:
        return False
    source = node.all_input_nodes[0]
    return source.op == "placeholder" and source.meta["val"].dtype == torch.float16
