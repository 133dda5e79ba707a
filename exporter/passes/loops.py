"""What enters a loop: torch refuses a loop whose arguments may share memory, as views of one tensor do."""

import torch
from torch._ops import HigherOrderOperator
from torch.fx import Graph, Node

__all__ = ["separate_loop_inputs"]


def separate_loop_inputs(graph: Graph) -> None:
    """Give every loop copies of the tensors it starts from; runtimes see that a copy is none."""
    for node in list(graph.nodes):
        if not isinstance(node.target, HigherOrderOperator):
            continue
        with graph.inserting_before(node):
            node.args = tuple(_copied(graph, argument) for argument in node.args)


def _copied(graph: Graph, argument: object) -> object:
    if isinstance(argument, list | tuple):
        return type(argument)(_copied(graph, item) for item in argument)
    if isinstance(argument, Node) and argument.op == "call_function":
        return graph.call_function(torch.ops.aten.clone.default, (argument,))
    return argument
