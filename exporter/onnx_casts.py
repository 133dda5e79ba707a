"""Weights of float16 widened where they are used, as :mod:`exporter.passes.casts` has it, which ONNX's passes undo."""

import onnx

__all__ = ["widen_at_each_use"]


def widen_at_each_use(graph: onnx.GraphProto) -> None:
    """Give each reader of an input of float16 a Cast of its own, so that the wide copy is free after it."""
    half = {value.name for value in graph.input if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16}
    casts = {node.output[0]: node for node in graph.node if node.op_type == "Cast" and node.input[0] in half}
    if not casts:
        return
    read: set[str] = set()
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in casts and name in read:
                own = onnx.NodeProto()
                own.CopyFrom(casts[name])
                own.name = own.output[0] = node.input[place] = f"{name}.{len(nodes)}.{place}"
                nodes.append(own)
            read.add(name)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
