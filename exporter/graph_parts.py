"""A traced program and the loops within it, which are graphs of their own."""

from torch.fx import GraphModule

__all__ = ["graph_parts"]


def graph_parts(module: GraphModule) -> list[GraphModule]:
    """The program first, then its loops."""
    return [part for part in module.modules() if isinstance(part, GraphModule)]
