"""The order of a step's results: onnxruntime works from the last one back, and frees what no other result needs."""

from collections.abc import Mapping

from torch.fx import Graph, Node

__all__ = ["order_results"]


def order_results(graph: Graph) -> None:
    """Put what the backward pass knows first last, in whatever order a model holds its layers.

    Else a gradient would go through all layers before the first weights are updated, and what those need would live.
    """
    places = {node: place for place, node in enumerate(graph.nodes)}
    end = next(node for node in graph.nodes if node.op == "output")
    alone = [node for node in graph.nodes if node.op == "call_function" and node.users.keys() == {end}]
    known = {node: _known(node, places) for node in alone}
    for node in sorted(alone, key=lambda each: -known[each]):
        end.prepend(node)


def _known(result: Node, places: Mapping[Node, int]) -> int:
    """The last place of what the result and others are computed from."""
    own, more = {result}, {result}
    while more:
        sources = {source for node in own for source in node.all_input_nodes if source.op == "call_function"} - own
        more = {each for each in sources if all(user in own or user.op == "output" for user in each.users)}
        own |= more
    return max((places[source] for source in sources), default=-1)
