"""What a train step in onnxruntime holds at its peak, known from one trace and no compilation.

onnxruntime frees a tensor after the last operation that reads it, as our sessions are opened
(:mod:`edge_fl.runtimes.onnx`). So the peak is the most that lives at once in the traced program, run in onnxruntime's
order, beside what a session holds of it, and the weights before and after the step.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from exporter.kernels import operation_name
from exporter.lower.onnx import onnx_decompositions
from exporter.quiet import quiet
from exporter.source import Traceable
from exporter.trace import export_static

__all__ = ["step_memory"]

_SESSION = 14_000_000
"""Bytes of a process's first session, however small its program and without torch: onnxruntime 1.27 on x86_64."""
_OPERATION = 2_500
"""Bytes that a session holds for each operation, as seen with programs of 60 to 1,000 of them."""
_GAPS = 1.5
"""What lies unused in the arena between what lives, in multiples of the largest tensor: as seen."""
_ENTRY_DRAWN = 3
"""Bytes: 16 bits of random numbers, and whether it is kept."""
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_VIEWS = frozenset(
    {"view", "reshape", "_unsafe_view", "squeeze", "unsqueeze", "alias", "detach", "getitem", "lift_fresh_copy"}
)


def step_memory(step: Traceable, counts: Mapping[str, int], batch: int) -> int:
    """Bytes that a step of ``counts`` kept units a block on ``batch`` samples takes beside the loaded libraries.

    Raises UnsupportedModelError when the train step cannot be traced.
    """
    with quiet():
        graph = export_static(step, counts, batch, onnx_decompositions()).graph
    given = sum(_size(tensor) for tensor in step.example(counts, batch)) + _drawing(step, batch)
    results = next(node for node in graph.nodes if node.op == "output").all_input_nodes
    # Weights are there as they were, as the program gives them, and as numpy has them.
    after = sum(_bytes(node) for node in results)
    gaps = int(_GAPS * max(_bytes(node) for node in graph.nodes))
    return _SESSION + _OPERATION * len(graph.nodes) + given + _most_at_once(graph) + gaps + after


def _drawing(step: Traceable, batch: int) -> int:
    """What a device has of a full mask while it draws the largest one."""
    return max((_ENTRY_DRAWN * batch * each.mask.size for each in step.source.dropped), default=0)


def _most_at_once(graph: Graph) -> int:
    nodes, memory = _in_order(graph), _memory(graph)
    last = {memory[source]: place for place, node in enumerate(nodes) for source in node.all_input_nodes}
    held = most = 0
    for place, node in enumerate(nodes):
        made = _bytes(node) if _allocates(node, memory) else 0
        sources = {memory[source] for source in node.all_input_nodes} | {memory[node]}
        ending = [first for first in sources if _allocates(first, memory) and last.get(first, place) == place]
        in_place = _is_pointwise(node) and any(_bytes(first) == made for first in ending if first is not node)
        most = max(most, held if in_place else held + made + _within(node))
        held += made - sum(map(_bytes, ending))
    return most


def _within(node: Node) -> int:
    """What lives at once inside a loop."""
    if not isinstance(node.target, HigherOrderOperator):
        return 0
    module, body = node.graph.owning_module, node.args[0]
    assert isinstance(module, GraphModule)
    assert isinstance(body, Node)
    return _most_at_once(module.get_submodule(str(body.target)).graph)  # type: ignore[arg-type]  # traced, as the rest


def _in_order(graph: Graph) -> list[Node]:
    """As onnxruntime orders them: from the last result backwards, of an operation's inputs the last one made first."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    ordered: dict[Node, None] = {}
    waiting = [(node, False) for node in graph.nodes if node.op != "output" and _is_result_alone(node)]
    while waiting:
        node, inputs_are_made = waiting.pop()
        if inputs_are_made:
            ordered[node] = None
        elif node not in ordered:
            waiting.append((node, True))
            sources = sorted(set(node.all_input_nodes), key=place.__getitem__)
            waiting.extend((source, False) for source in sources if source not in ordered)
    ordered.update(dict.fromkeys(graph.nodes))  # what nobody reads, and the end: results live until then
    return list(ordered)


def _is_result_alone(node: Node) -> bool:
    return bool(node.users) and all(user.op == "output" for user in node.users)


def _is_pointwise(node: Node) -> bool:
    """Such an operation writes over an input of its size that nobody reads afterwards; GELU's kernel does not."""
    if not isinstance(node.target, torch._ops.OpOverload) or operation_name(node.target) == "gelu":
        return False
    return torch.Tag.pointwise in node.target.tags


def _memory(graph: Graph) -> dict[Node, Node]:
    """For each node the one whose memory it shows."""
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        found[node] = found[node.all_input_nodes[0]] if _shows_its_input(node) else node
    return found


def _shows_its_input(node: Node) -> bool:
    if node.op != "call_function" or not node.all_input_nodes:
        return False
    match operation_name(node.target):
        case "expand":  # to the shape that it has: left out of the program
            return bool(node.meta["val"].shape == node.all_input_nodes[0].meta["val"].shape)
        case "clone":  # what enters a loop: onnxruntime makes no copy
            return all(isinstance(user.target, HigherOrderOperator) for user in node.users)
        case "permute":  # fused into the products
            return _swaps_the_last_two(node) and all(
                operation_name(user.target) in _PRODUCTS for user in node.users
            )
        case name:
            return name in _VIEWS


def _swaps_the_last_two(node: Node) -> bool:
    axes = node.meta["val"].dim()
    order = [axis % axes for axis in node.args[1]]  # type: ignore[union-attr]
    return order == [*range(axes - 2), axes - 1, axes - 2]


def _allocates(node: Node, memory: Mapping[Node, Node]) -> bool:
    return node.op == "call_function" and memory[node] is node


def _bytes(node: Node) -> int:
    return sum(_size(value) for value in _tensors(node.meta.get("val")))


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
