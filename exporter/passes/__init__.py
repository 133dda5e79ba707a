"""Passes over a traced graph before it is exported, each one file with one job."""

from torch.fx import GraphModule

from exporter.passes.common import share_common
from exporter.passes.loops import separate_loop_inputs
from exporter.passes.permutes import sink_permutes
from exporter.passes.sizes import multiply_lengths

__all__ = ["optimise"]


def optimise(module: GraphModule) -> None:
    """Let permutations cancel, compute what is equal once, and drop what nobody reads; changes ``module``."""
    multiply_lengths(module.graph)
    share_common(module.graph)
    sink_permutes(module.graph)
    share_common(module.graph)
    separate_loop_inputs(module.graph)
    module.graph.eliminate_dead_code()
    module.recompile()
