"""Handing parts of a program to XNNPACK, quickly: without the passes that have nothing to do in them.

XNNPACK's compiler traces each part anew for every one of its 17 passes, most of the time of a compilation. They prepare
convolutions, pooling, normalisation, attention and quantisation for XNNPACK, and a traced step has none of these left:
a part of elementwise arithmetic, products and moves alone needs few of them, mostly none. What takes the time and the
memory in long programs is finding the parts (:mod:`exporter.lower._parts`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from executorch.backends.xnnpack import xnnpack_preprocess
from executorch.backends.xnnpack._passes import XNNPACKPassManager
from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import ChannelsLastTaggedReshapePass
from executorch.backends.xnnpack._passes.decompose_cat import DecomposeConcatenate
from executorch.backends.xnnpack._passes.fuse_activation_pass import FuseActivationPass
from executorch.backends.xnnpack._passes.remove_redundant_copy_pass import RemoveRedundantCopyPass
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.backend_api import to_backend
from executorch.exir.backend.canonical_partitioners import group_partitioner
from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from executorch.exir.dialects._ops import ops
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.passes.infra import partitioner

from exporter.lower._parts import propose_parts

__all__ = ["delegate"]

_edge = ops.edge.aten
_LARGEST_CAT = 5
"""How many tensors XNNPACK concatenates at once."""
_UNTOUCHED = {
    *(_edge.abs.default, _edge.ceil.default, _edge.clamp.default, _edge.cos.default, _edge.exp.default),
    *(_edge.floor.default, _edge.gelu.default, _edge.log.default, _edge.neg.default, _edge.rsqrt.default),
    *(_edge.sigmoid.default, _edge.sin.default, _edge.sqrt.default, _edge.tanh.default, _edge.pow.Tensor_Scalar),
    *(_edge.add.Tensor, _edge.sub.Tensor, _edge.mul.Tensor, _edge.div.Tensor, _edge.bmm.default),
    _edge.linear.default,  # of constant weights and no bias, as sums are
    *(_edge.maximum.default, _edge.minimum.default, _edge._softmax.default, _edge.leaky_relu.default),
    *(_edge.view_copy.default, _edge.permute_copy.default, _edge.slice_copy.Tensor, _edge.constant_pad_nd.default),
}
"""Operations that XNNPACK takes as they are."""
_FUSED = set(FuseActivationPass.FUSEABLE_ACTIVATIONS)
_POOLED = {_edge.mean.dim}


def delegate(program: ExportedProgram) -> ExportedProgram:
    """Hand what XNNPACK takes of an edge program to it.

    Raises
    ------
    Exception
        Whatever ExecuTorch raises on what it cannot compile.
    """
    with _quickly():
        delegated: ExportedProgram = to_backend(program, XnnpackPartitioner())
    return delegated


class _NeededPasses(XNNPACKPassManager):
    """All passes, as ever, unless the part holds nothing but operations that are known to need fewer."""

    def __init__(self, exported_program: ExportedProgram, passes: list[type] | None = None) -> None:
        super().__init__(exported_program, passes)
        needed = _needed(exported_program)
        if needed is not None and not passes:
            self.passes = needed


def _needed(part: ExportedProgram) -> list[type] | None:
    calls = [node for node in part.graph.nodes if node.op == "call_function"]
    targets = {node.target for node in calls}
    if not targets <= _UNTOUCHED | _FUSED | _POOLED | {_edge.cat.default}:
        return None
    needed: list[type] = []
    if targets & _FUSED:
        needed.append(FuseActivationPass)
    if any(node.target is _edge.cat.default and len(node.args[0]) > _LARGEST_CAT for node in calls):
        needed.append(DecomposeConcatenate)
    if targets & _POOLED:
        needed += [ChannelsLastTaggedReshapePass, RemoveRedundantCopyPass]
    return needed


def _unneeded(_: GraphModule) -> None:
    """What depends on what, which :func:`exporter.lower._parts.propose_parts` does not ask."""


@contextmanager
def _quickly() -> Iterator[None]:
    """Put our own in place of what ExecuTorch offers no choice of."""
    own = [
        (xnnpack_preprocess, "XNNPACKPassManager", _NeededPasses),
        (GroupBasedPartitioner, "propose_partitions", propose_parts),
        (group_partitioner, "_DependencyViewer", _unneeded),
        (partitioner, "_DependencyViewer", _unneeded),
    ]
    usual = [getattr(owner, name) for owner, name, _ in own]
    try:
        for owner, name, ours in own:
            setattr(owner, name, ours)
        yield
    finally:
        for (owner, name, _), theirs in zip(own, usual, strict=True):
            setattr(owner, name, theirs)
