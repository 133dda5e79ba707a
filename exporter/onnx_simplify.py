"""Constant folding and the rewrite rules of onnxscript, in time that grows with the program.

``torch.onnx.export(optimize=True)`` runs the same rules and one more, which looks for halves of one tensor by trying
every pair of nodes. A train step of 10,000 nodes spends half of its export there, and has no such halves.
"""

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import optimizer
from onnxscript.rewriter import RewritePass
from onnxscript.rewriter.rules import common as rules

__all__ = ["simplify"]

_RULES = RewritePass(
    [
        *rules.mul_by_1_rule.commute(),
        *rules.add_0_rule.commute(),
        rules.sub_0_rule,
        rules.div_by_1_rule,
        rules.cast_constant_of_shape_rule,
        rules.cast_constant_of_shape_without_value_rule,
        rules.collapse_slice_rule,
        rules.collapse_slice2_rule,
        rules.materialize_reshape_shape_rule,
        rules.cast_cast_rule,
        rules.no_op_cast_rule,
        rules.no_op_expand_rule,
        rules.flatten_to_reshape_rule,
        rules.reshape_reshape_rule,
        rules.no_op_transpose_rule,
        rules.transpose_transpose_rule,
        rules.unsqueeze_unsqueeze_rule,
        rules.squeeze_reshape_1d_rule,
        rules.no_op_dynamic_scatter_nd_rule,
        rules.no_op_static_scatter_nd_rule,
    ]
)
_UNUSED = ir.passes.Sequential(
    common.RemoveUnusedNodesPass(),
    common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
    common.RemoveUnusedOpsetsPass(),
)
_TIDY = ir.passes.Sequential(
    common.RemoveUnusedNodesPass(),
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
    common.LiftSubgraphInitializersToMainGraphPass(),
    common.DeduplicateInitializersPass(),
    common.CommonSubexpressionEliminationPass(),
    common.OutputFixPass(),
    common.NameFixPass(),
)
_ROUNDS = 2
"""What one round folds lets rules match in the next."""


def simplify(model: ir.Model) -> None:
    """Simplify ``model`` in place; its outputs stay the same."""
    common.InlinePass()(model)
    for _ in range(_ROUNDS):
        folded = optimizer.fold_constants(model, onnx_shape_inference=True)
        rewritten = _RULES(model)
        _UNUSED(model)
        if not (folded.modified or rewritten.modified):
            break
    _TIDY(model)
