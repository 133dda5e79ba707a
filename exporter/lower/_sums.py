"""Sums and means as dense layers with constant weights.

The decompositions write a sum over the last axis as a product with a column of equal numbers. XNNPACK computes such a
product 32 columns wide; its dense layer of one output, whose weights must be constants, has a kernel for few columns.
"""

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

__all__ = ["sum_by_dense_layers"]

_aten = torch.ops.aten
_LARGEST = 1 << 14
"""Numbers in a column that a program file stores: 64 KiB."""
_MOVES = (_aten.reshape.default, _aten.expand.default)


def sum_by_dense_layers(module: GraphModule) -> None:
    """Make products with a column of equal numbers dense layers, where nodes tell their ``val``."""
    graph = module.graph
    names: dict[tuple[int, float], str] = {}
    for product in graph.find_nodes(op="call_function", target=_aten.bmm.default):
        rows, column = product.args
        _, count, columns = column.meta["val"].shape
        number = _equal_number(column)
        if number is None or columns != 1 or not 0 < count <= _LARGEST:
            continue
        if (count, number) not in names:
            names[count, number] = f"_column_{len(names)}"
            module.register_buffer(names[count, number], torch.full((1, count), number))
        with graph.inserting_before(product):
            total = _dense(graph, rows, names[count, number], count)
        product.replace_all_uses_with(total)
        graph.erase_node(product)


def _equal_number(column: Node) -> float | None:
    """The number that a product's float32 operand is made of, None where there are several."""
    source: Any = column
    while source.target in _MOVES:
        source = source.args[0]
    is_full = source.target is _aten.full.default and source.meta["val"].dtype == torch.float32
    return float(source.args[1]) if is_full else None


def _dense(graph: Graph, rows: Node, name: str, count: int) -> Node:
    """A dense layer of one output on ``rows``, ``[B, M, count]``: ``[B, M, 1]``."""
    constant = graph.get_attr(name)
    constant.meta["val"] = rows.meta["val"].new_empty((1, count))
    made = graph.call_function(_aten.linear.default, (rows, constant))
    made.meta["val"] = rows.meta["val"].new_empty((*rows.meta["val"].shape[:2], 1))
    return made
