"""Weights widened where they are used: a copy in float32 that forward and backward share would live the whole step."""

import torch
from torch.fx import Graph, Node

__all__ = ["widen_at_each_use"]

_NARROW = (torch.float16, torch.int8)


def widen_at_each_use(graph: Graph) -> None:
    """Give each reader of a narrow input a cast of its own, with its scale, so that the wide copy is free after it."""
    for node in list(graph.nodes):
        if _scales(node):
            _copy_for_each_reader(graph, node, node.args[0])
        elif _widens(node) and not any(map(_scales, node.users)):
            _copy_for_each_reader(graph, node)


def _copy_for_each_reader(graph: Graph, node: Node, cast: Node | None = None) -> None:
    """Copies of ``node``, and of the ``cast`` that it scales, before each reader but the first."""
    for user in list(node.users)[1:]:
        with graph.inserting_before(user):
            made = {} if cast is None else {cast: graph.node_copy(cast)}
            user.replace_input_with(node, graph.node_copy(node, lambda each, made=made: made.get(each, each)))  # type: ignore[misc]


def _widens(node: Node) -> bool:
    if node.target is not torch.ops.aten._to_copy.default or node.kwargs.get("dtype") != torch.float32:
        return False
    source = node.all_input_nodes[0]
    return source.op == "placeholder" and source.meta["val"].dtype in _NARROW


def _scales(node: Node) -> bool:
    """Whether it is a weight of int8 times its scale."""
    if node.target is not torch.ops.aten.mul.Tensor:
        return False
    cast, scale = node.args
    return isinstance(cast, Node) and _widens(cast) and isinstance(scale, Node) and scale.op == "placeholder"
