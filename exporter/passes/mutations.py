"""Operations that write in place, replaced by those that give a new tensor: the graph as functionalization makes it.

Tracing a graph a second time through ``torch.func.functionalize`` costs as much as the first time. Most models write
in place only to what nobody reads again, such as ``nn.ReLU(inplace=True)``, and there a new name is enough.
"""

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

__all__ = ["remove_mutations", "writes_in_place"]

_COPY = torch.ops.aten.copy_.default


def writes_in_place(graph: Graph) -> bool:
    """Some of torch's own decompositions do, too, such as those of the gradients of SiLU and Mish."""
    return any(_is_mutable(node) for node in graph.nodes)


def remove_mutations(graph: Graph, decomposed: Collection[Any]) -> bool:
    """Replace every write in place by a new tensor.

    Parameters
    ----------
    decomposed
        Operations that are to be traced in parts, and so cannot stand in for one in place.

    Returns
    -------
    False, and nothing is changed, where somebody reads a tensor or a view of it that was written to under another
    name, or where an operation has no counterpart that gives a new tensor.
    """
    places = {node: place for place, node in enumerate(graph.nodes)}
    memory = _memory(graph)
    writes = [node for node in graph.nodes if _is_mutable(node)]
    if not all(_has_counterpart(node, decomposed) and _reads_nothing_old(node, places, memory) for node in writes):
        return False
    for node in writes:
        if node.target == _COPY:
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
        else:
            node.target = _counterpart(node.target)
    return True


def _is_mutable(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _memory(graph: Graph) -> dict[Node, Node]:
    """For each node the first one with the same memory: operations that give views say so in their schemas."""
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        returns = node.target._schema.returns if isinstance(node.target, OpOverload) else ()
        if node.all_input_nodes and (
            node.target is operator.getitem or any(value.alias_info is not None for value in returns)
        ):
            found[node] = found[node.all_input_nodes[0]]
        else:
            found[node] = node
    return found


def _reads_nothing_old(write: Node, places: dict[Node, int], memory: dict[Node, Node]) -> bool:
    """Whether what the write replaces, under any name, is read by nobody afterwards; no input is written to."""
    if memory[write].op == "placeholder":
        return False
    old = [node for node, first in memory.items() if first is memory[write] and places[node] < places[write]]
    return all(places[reader] <= places[write] for node in old for reader in node.users)


def _has_counterpart(write: Node, decomposed: Collection[Any]) -> bool:
    target, source = write.args[0], write.args[-1]
    if write.target == _COPY:
        return isinstance(target, Node) and isinstance(source, Node) and _kind(target) == _kind(source)
    assert isinstance(write.target, OpOverload)
    other = _counterpart(write.target)
    return other is not None and other not in decomposed and "out" not in write.kwargs


def _kind(node: Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return tuple(value.shape), value.dtype


def _counterpart(operation: Any) -> OpOverload | None:
    """``relu`` of ``relu_``, with the same overload; None where there is none."""
    name = operation._schema.name.rpartition("::")[2]
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, operation._overloadname, None)
