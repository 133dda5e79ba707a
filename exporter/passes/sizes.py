"""Numbers of entries as products of lengths: ONNX has no translation for ATen's ``numel``."""

import operator
from functools import reduce

import torch
from torch.fx import Graph

__all__ = ["multiply_lengths"]

_aten = torch.ops.aten


def multiply_lengths(graph: Graph) -> None:
    """Replace every ``sym_numel``."""
    for node in graph.find_nodes(op="call_function", target=_aten.sym_numel.default):
        operand = node.args[0]
        with graph.inserting_before(node):
            lengths = [
                length if isinstance(length, int) else graph.call_function(_aten.sym_size.int, (operand, axis))
                for axis, length in enumerate(operand.meta["val"].shape)
            ]
            product = reduce(lambda a, b: graph.call_function(operator.mul, (a, b)), lengths)
        node.replace_all_uses_with(product)
        graph.erase_node(node)
