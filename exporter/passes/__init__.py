"""Passes over a traced graph before it is exported, each one file with one job."""

from torch import Tag
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from exporter.graph_parts import graph_parts
from exporter.passes.casts import widen_at_each_use
from exporter.passes.common import share_common
from exporter.passes.loops import separate_loop_inputs
from exporter.passes.permutes import sink_permutes
from exporter.passes.recompute import recompute_blocks
from exporter.passes.results import order_results
from exporter.passes.sizes import multiply_lengths

__all__ = ["optimise"]


def optimise(module: GraphModule) -> None:
    """Let permutations cancel, compute what is equal once, and drop what nobody reads; changes ``module``."""
    for part in graph_parts(module):
        recompute_blocks(part.graph)
    multiply_lengths(module.graph)
    share_common(module.graph)
    sink_permutes(module.graph)
    share_common(module.graph)
    separate_loop_inputs(module.graph)
    module.graph.eliminate_dead_code(_is_needed)
    for part in graph_parts(module):  # loops, too, where a micro-batch is forward and backward in one
        widen_at_each_use(part.graph)
        order_results(part.graph)
        part.recompile()


def _is_needed(node: Node) -> bool:
    """Whether a node is needed though nobody reads it. Attention is not, which torch counts among random operations."""
    random = isinstance(node.target, OpOverload) and Tag.nondeterministic_seeded in node.target.tags
    return node.is_impure() and not random
