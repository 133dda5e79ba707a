"""The shapes that an ONNX program reshapes to: constants wherever that is possible.

torch's translation reads every length that is not known at export from a tensor close by, and puts the shape
together again for each reshape; of a small model's step that is a third of all nodes, each with its fixed cost.
``0`` (as the operand) and ``-1`` (what is left) say most shapes as constants. The others are put together once each,
from the lengths of the program's inputs.
"""

import re
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper

__all__ = ["settle_shapes"]

_Shape = tuple[int | str, ...]
"""Lengths; those not known at export by their names."""

_PRODUCT = re.compile(r"(?:(\d+)\*)?(\w+)")
_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze")


def settle_shapes(model: ModelProto) -> None:
    """Rewrite the reshapes of ``model``, and drop what nothing reads then; loops' bodies stay as they are."""
    _Shapes(model.graph).settle()


class _Shapes:
    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph
        self.known = dict(_described(graph))
        self.producers = {output: node for node in graph.node for output in node.output}
        self.sources = _sources(graph)
        self.made: dict[_Shape, str] = {}
        self.front: list[NodeProto] = []

    def settle(self) -> None:
        for node in self.graph.node:
            if node.op_type == "Reshape":
                self._reshape(node)
        nodes = [*self.front, *self.graph.node]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        _drop_unread(self.graph)

    def _reshape(self, node: NodeProto) -> None:
        operand, result = self._origin(node.input[0]), node.output[0]
        if operand not in self.known or result not in self.known:
            return
        before, after = self.known[operand], self.known[result]
        relative = _relative(before, after)
        name = self._made(after) if relative is None else self._constant(relative)
        if name is not None:
            del node.attribute[:]
            node.input[:] = [operand, name]

    def _origin(self, name: str) -> str:
        """What is behind a chain of reshapes."""
        while name in self.producers and self.producers[name].op_type in _RESHAPES:
            name = self.producers[name].input[0]
        return name

    def _constant(self, shape: tuple[int, ...]) -> str:
        if shape not in self.made:
            self.made[shape] = name = f"shape_{len(self.made)}"
            self.graph.initializer.append(numpy_helper.from_array(np.array(shape, dtype=np.int64), name))
        return self.made[shape]

    def _made(self, shape: _Shape) -> str | None:
        """The shape as it is, computed from the inputs' once; None when a length is no multiple of one of theirs."""
        if shape not in self.made:
            lengths = []
            for length in shape:
                name = self._constant((length,)) if isinstance(length, int) else self._length(length)
                if name is None:
                    return None
                lengths.append(name)
            self.made[shape] = name = f"shape_{len(self.made)}"
            self.front.append(onnx.helper.make_node("Concat", lengths, [name], axis=0))
        return self.made[shape]

    def _length(self, text: str) -> str | None:
        """A length that is not known at export, ``[1]`` int64."""
        if (text,) not in self.made:
            product = _PRODUCT.fullmatch(text)
            if product is None or product[2] not in self.sources:
                return None
            tensor, axis = self.sources[product[2]]
            name = f"length_{product[2]}"
            if (product[2],) not in self.made:
                self.front.append(onnx.helper.make_node("Shape", [tensor], [name], start=axis, end=axis + 1))
                self.made[product[2],] = name
            if product[1]:
                multiple = f"length_{product[1]}_{product[2]}"
                factor = self._constant((int(product[1]),))
                self.front.append(onnx.helper.make_node("Mul", [name, factor], [multiple]))
                self.made[text,] = multiple
        return self.made[text,]


def _described(graph: GraphProto) -> Iterator[tuple[str, _Shape]]:
    for value in [*graph.value_info, *graph.input, *graph.output]:
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            shape = tuple(dim.dim_param or dim.dim_value for dim in dims)
            if all(dim.HasField("dim_param") or dim.HasField("dim_value") for dim in dims):
                yield value.name, shape


def _sources(graph: GraphProto) -> dict[str, tuple[str, int]]:
    """For each length that has a name, an input and the axis that is so long."""
    found: dict[str, tuple[str, int]] = {}
    for value in graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param.isidentifier():
                found.setdefault(dim.dim_param, (value.name, axis))
    return found


def _relative(before: _Shape, after: _Shape) -> tuple[int, ...] | None:
    """``after`` as numbers: 0 where it is as ``before``, -1 for one other; None where that is not enough."""
    shape = []
    for axis, length in enumerate(after):
        same = axis < len(before) and before[axis] == length
        shape.append(length if isinstance(length, int) else 0 if same else -1)
    return tuple(shape) if shape.count(-1) <= 1 else None


def _drop_unread(graph: GraphProto) -> None:
    needed = {value.name for value in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(_read(node))
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    for values in (graph.initializer, graph.value_info):
        read = [value for value in values if value.name in needed]
        del values[:]
        values.extend(read)


def _read(node: NodeProto) -> Iterator[str]:
    """What a node reads, its loops' bodies included."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _read(inner)
