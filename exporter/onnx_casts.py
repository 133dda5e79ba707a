"""Narrow weights widened where they are used, as :mod:`exporter.passes.casts` has it, which ONNX's passes undo."""

import onnx

__all__ = ["widen_at_each_use"]

_NARROW = (onnx.TensorProto.FLOAT16, onnx.TensorProto.INT8)


def widen_at_each_use(graph: onnx.GraphProto) -> None:
    """Give each reader of a narrow input a Cast of its own, with its scale, so that the wide copy is free after it."""
    inputs = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    made: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        if node.op_type == "Cast" and inputs.get(node.input[0]) in _NARROW:
            made[node.output[0]] = [node]
        elif node.op_type == "Mul" and node.input[0] in made and node.input[1] in inputs:
            made[node.output[0]] = [*made[node.input[0]], node]
    if not made:
        return
    chained = {id(chain[-1]) for chain in made.values() if len(chain) > 1}
    read: set[str] = set()
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for place, name in enumerate(node.input):
            if id(node) not in chained and name in made and name in read:
                node.input[place] = _copied(made[name], f"{name}.{len(nodes)}.{place}", nodes)
            read.add(name)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _copied(chain: list[onnx.NodeProto], name: str, nodes: list[onnx.NodeProto]) -> str:
    """Append copies of a Cast and what follows it, each reading the one before; gives what the last is called."""
    before = ""
    for number, node in enumerate(chain):
        own = onnx.NodeProto()
        own.CopyFrom(node)
        own.name = own.output[0] = f"{name}.{number}"
        if before:
            own.input[0] = before
        nodes.append(own)
        before = own.output[0]
    return before
