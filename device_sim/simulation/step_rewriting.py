"""The passes over a traced train step that make it quicker, and have it write its results over its inputs.

Operations that change nothing are left out. A parameter's descent is one operation in place. The matrix product that
ends its gradient goes into that operation, so that no gradient is written to memory. After a large product every small
operation finds the caches cold, so there are as few of them as can be.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from edge_fl.core.bundle import NEW

__all__ = ["Rewriting"]

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default, _aten.expand.default)
_POOLED_BACK = _aten.max_pool2d_with_indices_backward.default
_PRODUCTS: dict[Any, Any] = {_aten.bmm.default: _aten.baddbmm_.default, _aten.mm.default: _aten.addmm_.default}


class Rewriting:
    """The passes over one traced step, which takes ``inputs``, at this step size and scale."""

    def __init__(self, graph: Graph, inputs: Sequence[str], *, lr: float, scale: float) -> None:
        self._graph, self._lr, self._scale = graph, lr, scale
        nodes = [node for node in graph.nodes if node.op == "placeholder"]
        self._given = dict(zip(inputs, nodes, strict=True))
        self._end = next(node for node in graph.nodes if node.op == "output")
        self._written: set[Node] = set()

    def run(self, outputs: Sequence[str]) -> None:
        """Rewrite the graph, whose results are ``outputs``, to one that gives the loss alone."""
        for node in list(self._graph.nodes):
            self._drop(node)
            self._sum_flat(node)
            self._invert(node)
            self._add_while_multiplying(node)
            self._multiply_into(node)
            self._scale_while_multiplying(node)
        loss, *new = self._end.args[0]
        olds = [self._given[name.removeprefix(NEW)] for name in outputs[1:]]
        self._written.update(olds)
        # Everything is read before anything is written.
        writes = [self._write(old, value) for old, value in zip(olds, new, strict=True)]
        for write in writes:
            with self._graph.inserting_before(self._end):
                write()
        self._end.args = (loss,)
        self._graph.eliminate_dead_code()
        self._graph.lint()

    def _drop(self, node: Node) -> None:
        """Leave out a view of the same shape, and a product with 1.

        Pooling copies its places itself, and a product expands its factors.
        """
        same = node.target in _RESHAPES and _shape(node) == _shape(node.args[0])
        once = node.target is _aten.mul.Scalar and node.args[1] == 1 and _lies_alike(node)
        scales = node.target is _aten.mul.Tensor and node.args[1] is self._given["scale"]
        unscaled = scales and self._scale == 1 and _lies_alike(node)
        places = node.target is _aten.clone.default and all(user.target is _POOLED_BACK for user in node.users)
        spread = node.target is _aten.expand.default and all(_spreads(node, user) for user in node.users)
        if same or once or unscaled or places or spread:
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
            self._graph.erase_node(node)

    def _sum_flat(self, node: Node) -> None:
        """A sum without the axes that it is over, where a view leaves them out."""
        total = node.args[0] if node.target in _RESHAPES else None
        if not isinstance(total, Node) or not _is_used_once(total, (_aten.sum.dim_IntList,)):
            return
        summed, axes, *keeps = total.args
        if keeps != [True] or total.kwargs or not isinstance(axes, list | tuple) or not axes:
            return
        if not (shape := _shape(summed)):
            return
        gone = {axis % len(shape) for axis in axes if isinstance(axis, int)}
        if _shape(node) == tuple(size for axis, size in enumerate(shape) if axis not in gone):
            node.target, node.args = _aten.sum.dim_IntList, (summed, axes)
            self._graph.erase_node(total)

    def _invert(self, node: Node) -> None:
        """``1 / a`` in one operation."""
        if node.target is not _aten.div.Tensor:
            return
        ones, divisor = node.args
        if _is_used_once(ones, (_aten.ones_like.default,)) and _traced(divisor) and _kind(ones) == _kind(divisor):
            node.target, node.args = _aten.reciprocal.default, (divisor,)
            self._graph.erase_node(ones)  # type: ignore[arg-type]

    def _add_while_multiplying(self, node: Node) -> None:
        """``a + b @ c`` in one operation: what a stacked linear layer comes to."""
        if node.target is not _aten.add.Tensor or node.kwargs:
            return
        added, product = node.args
        alike = isinstance(added, Node) and _is_used_once(product, (_aten.bmm.default,))
        if alike and _shape(product) == _shape(node):
            with self._graph.inserting_before(node):
                fused = self._graph.call_function(_aten.baddbmm.default, (added, *product.args))  # type: ignore[union-attr]
            fused.meta = node.meta
            node.replace_all_uses_with(fused)
            self._graph.erase_node(node)

    def _multiply_into(self, node: Node) -> None:
        """``a += b @ c`` in one operation."""
        if node.target is not _aten.add_.Tensor or node.kwargs:
            return
        sum_, product = node.args
        if _is_used_once(product, tuple(_PRODUCTS)) and _shape(product) == _shape(sum_):
            node.target, node.args = _PRODUCTS[product.target], (sum_, *product.args)  # type: ignore[union-attr]
            self._graph.erase_node(product)  # type: ignore[arg-type]

    def _scale_while_multiplying(self, node: Node) -> None:
        """``(a + b @ c) scale`` in one operation."""
        if node.target is not _aten.mul.Tensor or node.args[1] is not self._given["scale"]:
            return
        layer = node.args[0]
        if _is_used_once(layer, (_aten.baddbmm.default, _aten.addmm.default)) and not layer.kwargs:  # type: ignore[union-attr]
            layer.kwargs = {"beta": self._scale, "alpha": self._scale}  # type: ignore[union-attr]
            node.replace_all_uses_with(layer)  # type: ignore[arg-type]
            self._graph.erase_node(node)

    def _write(self, old: Node, new: Node) -> Callable[[], Node]:
        """What will write ``new`` over ``old``: a descent in place where it is one, else a copy."""
        gradient = self._gradient(old, new)
        if gradient is None:
            return self._later(_aten.copy_.default, old, self._own(new))
        if _is_used_once(gradient, tuple(_PRODUCTS)) and not any(self._is_written(part) for part in gradient.args):
            return self._later(_PRODUCTS[gradient.target], old, *gradient.args, alpha=-self._lr)
        return self._later(_aten.add_.Tensor, old, self._own(gradient), alpha=-self._lr)

    def _later(self, operation: Any, *operands: Any, **factors: Any) -> Callable[[], Node]:
        return lambda: self._graph.call_function(operation, operands, factors)

    def _gradient(self, old: Node, new: Node) -> Node | None:
        """g, where ``new`` is ``old - lr g``."""
        if new.target is not _aten.sub.Tensor or new.args[0] is not old:
            return None
        move = new.args[1]
        if not _is_used_once(move, (_aten.mul.Tensor,)) or move.args[0] is not self._given["lr"]:  # type: ignore[union-attr]
            return None
        gradient = move.args[1]  # type: ignore[union-attr]
        return gradient if _shape(gradient) == _shape(old) else None  # type: ignore[return-value]

    def _own(self, node: Node) -> Node:
        """A copy of what lies in memory that may be written to before it is read."""
        if not self._is_written(node):
            return node
        with self._graph.inserting_before(self._end):
            return self._graph.call_function(_aten.clone.default, (node,))

    def _is_written(self, node: object) -> bool:
        """Whether a node is an input that is written over, or a view of one."""
        while isinstance(node, Node) and _may_be_view(node):
            node = node.args[0]
        return node in self._written


def _may_be_view(node: Node) -> bool:
    """Whether a node may share the memory of its first argument."""
    if isinstance(node.target, OpOverload):
        return node.target in _RESHAPES or any(result.alias_info for result in node.target._schema.returns)
    return node.target is operator.getitem


def _is_used_once(node: object, targets: Sequence[object]) -> bool:
    return isinstance(node, Node) and node.target in targets and len(node.users) == 1


def _spreads(node: Node, user: Node) -> bool:
    """Whether ``user`` multiplies an expansion ``node`` by what has its shape, and would expand it itself."""
    if user.target is not _aten.mul.Tensor:
        return False
    expanded, factor = user.args
    own = expanded is node and factor is not node and _traced(factor)
    return own and (_shape(factor), _dtype(factor)) == (_shape(node), _dtype(node))


def _lies_alike(node: Node) -> bool:
    """Whether a result lies in memory as its first operand, so that views of either are views of the other."""
    return _strides(node) == _strides(node.args[0])


def _strides(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].stride)


def _traced(node: object) -> bool:
    """Whether it is known how a node lies in memory; of constants it is not."""
    return isinstance(node, Node) and "tensor_meta" in node.meta


def _kind(node: object) -> tuple[Any, ...]:
    """What two tensors have in common that may stand for one another."""
    return _shape(node), _strides(node), _dtype(node)


def _dtype(node: Any) -> torch.dtype:
    dtype: torch.dtype = node.meta["tensor_meta"].dtype
    return dtype


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].shape)
