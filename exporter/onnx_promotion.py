"""Casts where torch promotes types, as torch.onnx inserts them, of graphs whose values are known.

Torch's pass computes every node's value again in symbolic shapes: a sixth of an export to ONNX.
"""

from typing import Any

from torch.fx import GraphModule, Node
from torch.onnx._internal.fx.passes.type_promotion import (
    InsertTypePromotion,
    _TypePromotionInterpreter,
    get_type_promotion_rule,
)

__all__ = ["promote_types"]


def promote_types(graph: GraphModule) -> None:
    """Insert a cast before each operation of operands of different types, in ``graph`` and the graphs in it.

    What a node's ``meta`` holds is its value; that of a node without one is computed.
    """
    for module in graph.modules():
        if isinstance(module, GraphModule):
            _Promotion(module).run()


class _Promotion(InsertTypePromotion):
    """Torch's pass, which takes values from where they are known."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.interpreter = _Knowing(module, self.interpreter.type_promotion_table)


class _Knowing(_TypePromotionInterpreter):
    def run_node(self, n: Node) -> Any:
        """Insert casts before one node, which computes its value if a cast changes it; else that is known."""
        if n.op != "call_function" or "val" not in n.meta:
            return super().run_node(n)
        with self._set_current_node(n):
            if rule := get_type_promotion_rule(n, self.type_promotion_table):
                self._maybe_promote_node(n, rule)
        return n.meta["val"]
