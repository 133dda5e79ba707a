"""A bundle's torch train step, made one of many clients at once that leaves its results in the tensors it is given.

``torch.func.vmap`` makes every operation one over clients. What it is traced to is then rewritten: operations that
change nothing are left out, and a parameter's descent is one operation in place, into which the matrix product that
ends its gradient goes, so that no gradient is written to memory. After a large product every small operation finds the
caches cold, so there are as few of them as can be.
"""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.func import vmap
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from device_sim.simulation.lasting_inputs import take_out_views
from device_sim.simulation.small_convolutions import SMALL, unfoldings, write_as_products
from edge_fl.core.bundle import FROZEN_TENSOR, NEW, Bundle, Program
from edge_fl.runtimes.torch_eager import open_graph

__all__ = ["BoundStep", "StackedStep", "StepGraph"]

_aten = torch.ops.aten
_SHARED = ("lr", "scale", "number")
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default, _aten.expand.default)
_POOLED_BACK = _aten.max_pool2d_with_indices_backward.default
_PRODUCTS: dict[Any, Any] = {_aten.bmm.default: _aten.baddbmm_.default, _aten.mm.default: _aten.addmm_.default}

BoundStep = Callable[[Mapping[str, Tensor]], Tensor]
"""Takes those of a step's inputs by name that do not last; writes the new tensors and slots over the old ones, and
gives the losses ``[K]``."""


class StepGraph:
    """One train step of a bundle, for any widths, before it is stacked.

    Parameters
    ----------
    bundle
        Holds ``program``.
    program
        A step of the runtime ``torch_eager``.
    device
        Where it is made.

    Attributes
    ----------
    multiplies_images
        Whether small convolutions were written as products.
    """

    def __init__(self, bundle: Bundle, program: Program, device: torch.device) -> None:
        self._module = open_graph(bundle, program, device)
        for node in self._module.graph.nodes:
            if node.target is _aten.sym_size.int:
                node.target = _size  # vmap knows no symbolic sizes
        self._inputs, self._outputs = program.inputs, program.outputs
        self._convolutions = unfoldings(self._module.graph, program.inputs)
        self.multiplies_images = device.type == "cpu" and write_as_products(self._module.graph)
        self._module.recompile()
        self._shared = {*_SHARED, *(f"{FROZEN_TENSOR}{t.name}" for t in bundle.layout.frozen if t.whole)}

    def convolves(self, shapes: Mapping[str, Sequence[int]], batch: int) -> bool:
        """Whether there is a convolution in it that stays one, for a batch and weights of these shapes, by input."""
        stay = not self.multiplies_images
        return any(stay or each.size(shapes, batch) > SMALL for each in self._convolutions)

    def stacked(
        self, example: Mapping[str, Tensor], *, lasting: Collection[str], lr: float, scale: float
    ) -> "StackedStep":
        """The step for inputs of the shapes and on the device of ``example``, at this step size and scale.

        Those named ``lasting`` lie in the same memory at every step.
        """
        alone = len(example["x"]) == 1
        axes = tuple(None if name in self._shared else 0 for name in self._inputs)
        step: Callable[..., Any] = self._flat if alone else vmap(self._flat, in_dims=axes)
        single = {name for name in self._inputs if alone and name not in self._shared}
        ordered = [example[name][0] if name in single else example[name] for name in self._inputs]
        with torch.no_grad():
            module = make_fx(step)(*ordered)
        _Rewriting(module.graph, self._inputs, lr=lr, scale=scale).run(self._outputs)
        return StackedStep(module, self._inputs, lasting=lasting, single=single)

    def _flat(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._module(*inputs))


class StackedStep:
    """A train step of K clients, for inputs of given shapes.

    All inputs but the shared ones have clients as first axis. Views of inputs that last are made once, when the step is
    bound to them.

    Parameters
    ----------
    module
        Takes ``inputs``, and gives the loss.
    lasting
        Names of inputs whose memory stays where it is.
    single
        Names of inputs whose axis of one client ``module`` does without.
    """

    def __init__(
        self, module: GraphModule, inputs: Sequence[str], *, lasting: Collection[str], single: Collection[str]
    ) -> None:
        given = [node for node in module.graph.nodes if node.op == "placeholder"]
        stays = {node for name, node in zip(inputs, given, strict=True) if name in lasting}
        self._views = GraphModule({}, take_out_views(module.graph, stays))
        module.graph.lint()
        module.recompile()
        self._module, self._inputs, self._lasting, self._single = module, tuple(inputs), lasting, single

    def bound(self, lasting: Mapping[str, Tensor]) -> BoundStep:
        """The step on inputs that last, by name."""
        module, held = (
            self._module,
            {name: self._own(name, lasting[name]) for name in self._inputs if name in self._lasting},
        )
        further = self._views(*held.values())
        given = [held.get(name) for name in self._inputs] + list(further)
        fresh = [(place, name) for place, name in enumerate(self._inputs) if name not in held]

        def step(inputs: Mapping[str, Tensor]) -> Tensor:
            for place, name in fresh:
                given[place] = self._own(name, inputs[name])
            losses: Tensor = module(*given).reshape(-1)
            return losses

        return step

    def _own(self, name: str, tensor: Tensor) -> Tensor:
        """A single client needs no axis of its own."""
        return tensor[0] if name in self._single else tensor


def _size(tensor: Tensor, axis: int) -> int:
    return tensor.shape[axis]


class _Rewriting:
    """The passes over one traced step."""

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
        """Leave out a view of the same shape, a product with 1, a copy of places that pooling copies itself, and an
        expansion that a product makes itself.
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
        if not _is_used_once(total, (_aten.sum.dim_IntList,)) or total.args[2:] != (True,) or total.kwargs:  # type: ignore[union-attr]
            return
        summed, axes, _ = total.args  # type: ignore[union-attr]
        shape = _shape(summed)
        gone = {axis % len(shape) for axis in axes}
        if _shape(node) == tuple(size for axis, size in enumerate(shape) if axis not in gone):
            node.target, node.args = _aten.sum.dim_IntList, (summed, axes)
            self._graph.erase_node(total)  # type: ignore[arg-type]

    def _invert(self, node: Node) -> None:
        """``1 / a`` in one operation."""
        if node.target is not _aten.div.Tensor:
            return
        ones, divisor = node.args
        if _is_used_once(ones, (_aten.ones_like.default,)) and _shape(ones) == _shape(divisor):
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
    if user.target is not _aten.mul.Tensor or user.args[0] is not node:
        return False
    factor = user.args[1]
    return isinstance(factor, Node) and factor is not node and _shape(factor) == _shape(node)


def _lies_alike(node: Node) -> bool:
    """Whether a result lies in memory as its first operand, so that views of either are views of the other."""
    return _strides(node) == _strides(node.args[0])


def _strides(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].stride)


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].shape)
