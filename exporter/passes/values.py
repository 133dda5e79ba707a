"""What every node of a graph gives: passes leave new nodes without it, and translators read shapes and dtypes there."""

from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.fx import Graph
from torch.fx.node import map_arg

__all__ = ["fill_values"]


def fill_values(graph: Graph, mode: FakeTensorMode) -> None:
    """Run the nodes that have no ``val`` yet on those of their arguments, in the mode that the graph was traced in."""
    for node in list(graph.nodes):
        if node.op == "call_function" and "val" not in node.meta:
            args, kwargs = map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
            with mode, enable_python_dispatcher():
                node.meta["val"] = node.target(*args, **kwargs)
