"""Reshape sinking: values keep the shape of the product that they come from.

XNNPACK copies a reshaped tensor that has other users, or that enters or leaves the program; and a traced step reshapes
before and after every product. Here the values behind a reshape travel on in the shape they have. Operations on single
elements, and those along the last axis, are computed in the shape of the values, if both shapes have the same last
axis: between convolutions, whose windows need their axes apart, nothing would be won. Only where an operation needs
the written shape is the reshape computed, once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from exporter.passes.permutes import AxisGroups, axis_groups

__all__ = ["reshaped", "sink_reshapes"]

_aten = torch.ops.aten
_RESHAPES = (_aten.reshape.default, _aten.view.default, _aten._unsafe_view.default)
_MAY_BE_IDLE = (_aten.expand.default, _aten.slice.Tensor, _aten.clone.default)
_POINTWISE = {
    *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor, _aten.mul.Scalar, _aten.add.Scalar),
    *(_aten.neg.default, _aten.abs.default, _aten.exp.default, _aten.log.default, _aten.sqrt.default),
    *(_aten.rsqrt.default, _aten.tanh.default, _aten.sigmoid.default, _aten.gelu.default, _aten.relu.default),
    *(_aten.ceil.default, _aten.floor.default, _aten.clamp.default, _aten.pow.Tensor_Scalar),
    *(_aten.maximum.default, _aten.minimum.default, _aten.leaky_relu.default),
}
_SOFTMAX = (_aten._softmax.default, _aten._log_softmax.default)
_Shape = tuple[int, ...]


def sink_reshapes(graph: Graph) -> None:
    """Move the reshapes of a static graph, whose nodes tell their ``val``, to the operations that need them."""
    _Sinking(graph).run()


def reshaped(graph: Graph, node: Node, shape: Sequence[int]) -> Node:
    """A new reshape of ``node``, where the graph inserts, with its ``val``."""
    made = graph.call_function(_aten.reshape.default, (node, list(shape)))
    made.meta["val"] = node.meta["val"].reshape(shape)
    return made


class _Sinking:
    """Walks a graph once. A node in ``base`` is not computed as written: its values are that node's, in its shape."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.base: dict[Node, Node] = {}
        self.computed: dict[tuple[Node, _Shape], Node] = {}

    def run(self) -> None:
        for node in list(self.graph.nodes):
            with self.graph.inserting_before(node):
                rule = _RULES.get(node.target)
                moved = rule(self, node) if rule else None
                if moved is None:
                    self._settle(node)
                else:
                    self.base[node] = moved

    def _settle(self, node: Node) -> None:
        """Give ``node`` its operands in their written shapes."""
        for operand in node.all_input_nodes:
            if operand not in self.base:
                continue
            base, shape = self.base[operand], _shape(operand)
            goes_through = node.op == "output" and base.op == "placeholder"  # a result has memory of its own
            node.replace_input_with(
                operand, reshaped(self.graph, base, shape) if goes_through else self.shaped(operand, shape)
            )

    def shaped(self, node: Node, shape: _Shape) -> Node:
        """The values of ``node`` in ``shape``, computed once."""
        base = self.base.get(node, node)
        if _shape(base) == shape:
            return base
        if (base, shape) not in self.computed:
            self.computed[base, shape] = reshaped(self.graph, base, shape)
        return self.computed[base, shape]

    def call(self, node: Node, args: Sequence[Any], shape: _Shape) -> Node:
        """``node``'s operation on other arguments, which gives ``shape``."""
        made = self.graph.call_function(node.target, tuple(args), dict(node.kwargs))  # type: ignore[arg-type]
        made.meta["val"] = node.meta["val"].reshape(shape)
        return made


def _reshape(sinking: _Sinking, node: Node) -> Node | None:
    source: Any = node.args[0]
    base: Node = sinking.base.get(source, source)
    return base


def _idle(sinking: _Sinking, node: Node) -> Node | None:
    """What leaves a shape as it is, as torch's expansion of both sides of a batched product, does nothing."""
    return _reshape(sinking, node) if _shape(node.args[0]) == _shape(node) else None  # type: ignore[arg-type]


def _pointwise(sinking: _Sinking, node: Node) -> Node | None:
    written = _shape(node)
    operands = [operand for operand in node.all_input_nodes if _is_tensor(operand)]
    shapes = [_shape(sinking.base[o]) for o in operands if o in sinking.base and _shape(o) == written]
    if not shapes or any(user.op == "output" for user in node.users):
        return None
    groups = _groups_with_one_last(written, shapes[0])
    if groups is None:
        return None
    found = {operand: _placed(_shape(operand), written, shapes[0], groups) for operand in operands}
    placed = {operand: shape for operand, shape in found.items() if shape is not None}
    if len(placed) < len(found):
        return None
    args = [
        sinking.shaped(arg, placed[arg]) if isinstance(arg, Node) and arg in placed else arg for arg in node.args
    ]
    return sinking.call(node, args, shapes[0])


def _placed(operand: _Shape, written: _Shape, shape: _Shape, groups: AxisGroups) -> _Shape | None:
    """The shape in which ``operand``, that is broadcast to ``written``, is broadcast to ``shape``; None if none is."""
    if operand == written:
        return shape
    if math.prod(operand) == 1 and len(operand) <= len(shape):
        return operand
    padded = (1,) * (len(written) - len(operand)) + operand
    placed = [1] * len(shape)
    for before, after in groups:
        sizes = [padded[axis] for axis in before]
        if sizes == [written[axis] for axis in before]:
            for axis in after:
                placed[axis] = shape[axis]
        elif any(size != 1 for size in sizes):
            return None
    while len(placed) > len(operand) and placed[0] == 1:
        del placed[0]
    return tuple(placed)


def _softmax(sinking: _Sinking, node: Node) -> Node | None:
    source, axis, *others = node.args
    base = sinking.base.get(source)  # type: ignore[arg-type]
    rank = len(_shape(node))
    if base is None or rank == 0 or axis % rank != rank - 1:  # type: ignore[operator]
        return None
    if _groups_with_one_last(_shape(node), _shape(base)) is None:
        return None
    return sinking.call(node, [base, -1, *others], _shape(base))


def _groups_with_one_last(written: _Shape, shape: _Shape) -> AxisGroups | None:
    """The runs of axes of both shapes, if the last axis of each is the same, so that what is along it is; or None."""
    groups = axis_groups(written, shape)
    return groups if groups and groups[-1] == ([len(written) - 1], [len(shape) - 1]) else None


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _shape(node: Node) -> _Shape:
    return tuple(node.meta["val"].shape)


_Rule = Callable[[_Sinking, Node], Node | None]
_RULES: dict[Any, _Rule] = {
    **dict.fromkeys(_RESHAPES, _reshape),
    **dict.fromkeys(_MAY_BE_IDLE, _idle),
    **dict.fromkeys(_POINTWISE, _pointwise),
    **dict.fromkeys(_SOFTMAX, _softmax),
}
