"""From a traced program to ExecuTorch's edge dialect, in one walk over its graph.

``executorch.exir.to_edge_transform_and_lower`` traces a graph anew some twenty times, twice to decompose it and once
for each rule that makes edge operations of ATen's. A traced program is decomposed already and has no side effects
(:mod:`exporter.trace`), and the rules look at one operation at a time: here ExecuTorch's own are applied one after the
other to each operation, while the graph is walked once.
"""

from collections.abc import Mapping
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig
from executorch.exir.pass_base import ProxyValue
from executorch.exir.pass_manager import ExportedProgramPassManager
from executorch.exir.passes import (
    DebugHandleGeneratorPass,
    MemoryFormatOpsPass,
    OpReplacePass,
    dead_code_elimination_pass,
)
from executorch.exir.passes.convert_constant_dim_order_pass import convert_constant_dim_order_pass
from executorch.exir.passes.prune_empty_tensors_pass import PruneEmptyTensorsPass
from executorch.exir.passes.remove_graph_asserts_pass import RemoveNonCoreAtenOpGraphAssertsPass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.remove_noop_pass import RemoveToCopyPass
from executorch.exir.passes.replace_broken_ops_with_function_ops_pass import ReplaceBrokenOpsWithFunctionalOpsPass
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.program._program import lift_constant_tensor_pass
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

__all__ = ["UNCHECKED", "to_edge"]

UNCHECKED = EdgeCompileConfig(_check_ir_validity=False)
"""The dialect's checks trace the graph too, and would do so after every change: parity checks what comes out."""
_aten = torch.ops.aten
_RESHAPES = {_aten.reshape.default, _aten._unsafe_view.default}
_MAY_BE_IDLE = {*_RESHAPES, _aten.slice.Tensor, _aten.expand.default}
"""What does nothing where it leaves the shape as it is, as torch's expansion of both sides of a product of batches."""
_ARITHMETIC = {_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor}


def to_edge(exported: ExportedProgram) -> ExportedProgram:
    """Translate a decomposed, static program without side effects; ``exported`` cannot be used any more.

    Raises
    ------
    Exception
        Whatever ExecuTorch raises on what it does not know.
    """
    for node in exported.graph.nodes:
        # Where a node comes from grows with every walk, and is copied deeply by each.
        node.meta = {key: value for key, value in node.meta.items() if key == "val"}
        _reshape_once(node)
    passes = ExportedProgramPassManager(
        [
            RemoveNonCoreAtenOpGraphAssertsPass(),
            PruneEmptyTensorsPass(),
            RemoveToCopyPass(),
            _ToEdge(),
            dead_code_elimination_pass,
            DebugHandleGeneratorPass(),
        ]
    )
    verifier = EXIREdgeDialectVerifier(edge_compile_config=UNCHECKED, class_only=True)
    program: ExportedProgram = passes(exported, [verifier]).exported_program
    return convert_constant_dim_order_pass(lift_constant_tensor_pass(program))  # type: ignore[no-any-return]


class _ToEdge(
    ReplaceBrokenOpsWithFunctionalOpsPass,
    ScalarToTensorPass,
    RemoveMixedTypeOperators,
    OpReplacePass,
    MemoryFormatOpsPass,
):
    """ExecuTorch's rules in its own order: each hands what it has made of an operation to the next."""

    def call_operator(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], meta: Any) -> Any:
        """Copies in place of views, as everything in the dialect has memory of its own; copies of copies are none."""
        if op in _ARITHMETIC:
            args = _as_floats(args)
        result = super().call_operator(_aten.view_copy.default if op in _RESHAPES else op, args, kwargs, meta)
        if op is _aten.cat.default and len(args[0]) == 1:
            return args[0][0]
        return args[0] if _nothing_done(op, args, result) else result

    def call(self, graph_module: GraphModule) -> PassResult:
        """Walk the graph, which always changes: one of the rules would say no if there were no numbers in it."""
        return PassResult(super().call(graph_module).graph_module, True)


def _reshape_once(node: Node) -> None:
    """A reshape of what was reshaped takes what was there before: each would copy."""
    while node.target in _RESHAPES:
        source = node.args[0]
        if not isinstance(source, Node) or source.target not in _RESHAPES:
            return
        node.update_arg(0, source.args[0])


def _nothing_done(op: Any, args: tuple[Any, ...], result: Any) -> bool:
    idle = op is _aten.clone.default or (op in _MAY_BE_IDLE and bool(result.data.shape == args[0].data.shape))
    # What comes in must not go out as it is; all else has memory of its own, in the order of its axes.
    return idle and isinstance(args[0], ProxyValue) and args[0].node.op != "placeholder"


def _as_floats(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same operands, whole numbers beside a float tensor as floats: else each would be converted in every step."""
    tensors = [arg.data for arg in args if hasattr(arg, "data")]
    if not any(tensor.is_floating_point() for tensor in tensors):
        return args
    return tuple(float(arg) if type(arg) is int else arg for arg in args)
