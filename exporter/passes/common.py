"""Common subexpressions: what forward has computed, backward reads instead of computing it anew.

torch's own pass spares whatever may alias an output and imports the inductor; a traced step writes to no tensor.
"""

from collections.abc import Container
from typing import Any

import torch
from torch.fx import Graph, Node

__all__ = ["share_common"]


def share_common(graph: Graph, targets: Container[Any] | None = None) -> None:
    """Replace every call, or those of ``targets``, by the first that is equal; random ones stay."""
    seen: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or _random(node) or (targets is not None and node.target not in targets):
            continue
        key = node.target, _key(node.args), _key(node.kwargs)
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _key(argument: Any) -> Any:
    """A hashable stand-in; with its type, as 1, 1.0 and True are equal but no equal arguments."""
    if isinstance(argument, list | tuple):
        return tuple(_key(item) for item in argument)
    if isinstance(argument, dict):
        return tuple((name, _key(item)) for name, item in sorted(argument.items()))
    return type(argument), argument
