"""A program that names a file of the device is refused before onnxruntime sees it."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edge_fl.core.errors import BundleError
from edge_fl.runtimes import _external_data
from edge_fl.runtimes._external_data import refuse_external_data

KINDS = {
    "ModelProto": "model",
    "TrainingInfoProto": "training",
    "FunctionProto": "function",
    "GraphProto": "graph",
    "NodeProto": "node",
    "AttributeProto": "attribute",
    "SparseTensorProto": "sparse",
    "TensorProto": "tensor",
}


def inside() -> TensorProto:
    return numpy_helper.from_array(np.float32([1, 2]), "w")


def outside() -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="secret.txt")
    return tensor


def model(
    *, initializers: tuple[TensorProto, ...] = (), nodes: tuple[onnx.NodeProto, ...] = ()
) -> onnx.ModelProto:
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    nodes = nodes or (helper.make_node("Identity", ["w"], ["y"]),)
    graph = helper.make_graph(nodes, "g", [], [output], initializer=initializers)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


def in_attribute(tensor: TensorProto) -> onnx.ModelProto:
    return model(nodes=(helper.make_node("Constant", [], ["y"], value=tensor),))


def in_branch(tensor: TensorProto) -> onnx.ModelProto:
    graph = in_attribute(tensor).graph
    return model(nodes=(helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph),))


def in_function(tensor: TensorProto) -> onnx.ModelProto:
    found = model(initializers=(inside(),))
    node = helper.make_node("Constant", [], ["y"], value=tensor)
    found.functions.append(helper.make_function("own", "F", [], ["y"], [node], [helper.make_opsetid("", 20)]))
    return found


def in_sparse(tensor: TensorProto) -> onnx.ModelProto:
    found = model(initializers=(inside(),))
    found.graph.sparse_initializer.add(values=tensor, indices=numpy_helper.from_array(np.int64([0, 1])), dims=[4])
    return found


PLACES = [lambda tensor: model(initializers=(inside(), tensor)), in_attribute, in_branch, in_function, in_sparse]
NAMES = ["initializer", "attribute", "branch", "function", "sparse"]


@pytest.mark.parametrize("place", PLACES, ids=NAMES)
def test_a_file_is_refused_wherever_it_is_named(place: "object") -> None:
    refuse_external_data(place(inside()).SerializeToString(), "'p.onnx'")  # type: ignore[operator]
    with pytest.raises(BundleError, match=r"'p\.onnx' reads another file, which no program may"):
        refuse_external_data(place(outside()).SerializeToString(), "'p.onnx'")  # type: ignore[operator]


def test_either_of_the_two_fields_is_enough() -> None:
    for field in ("data_location", "external_data"):
        tensor = outside()
        tensor.ClearField(field)
        with pytest.raises(BundleError, match="reads another file"):
            refuse_external_data(model(initializers=(tensor,)).SerializeToString(), "p")


def test_onnxruntime_would_read_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the refusal is for: without it the file's bytes come out of the program."""
    onnxruntime = pytest.importorskip("onnxruntime")
    (tmp_path / "secret.txt").write_bytes(np.float32([7, 9]).tobytes())
    monkeypatch.chdir(tmp_path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    program = model(initializers=(outside(),)).SerializeToString()
    assert onnxruntime.InferenceSession(program, options).run(None, {})[0].tolist() == [7, 9]


def test_every_way_to_a_tensor_is_known() -> None:
    """By onnx's own description of its messages."""
    for message, kind in KINDS.items():
        described: Descriptor = getattr(onnx, message).DESCRIPTOR
        ways = {
            field.number: KINDS[field.message_type.name]
            for field in described.fields
            if field.message_type is not None and field.message_type.name in KINDS
        }
        assert ways == _external_data._FIELDS[kind], message
        leaves = [field.message_type for field in described.fields if field.message_type is not None]
        for leaf in leaves:
            inner = {field.message_type.name for field in leaf.fields if field.message_type is not None}
            assert leaf.name in KINDS or not inner & set(KINDS), leaf.name


@given(st.binary(max_size=200))
def test_anything_else_is_refused_or_names_no_file(data: bytes) -> None:
    with suppress(BundleError):
        refuse_external_data(data, "p")


@given(st.data())
def test_a_damaged_program_is_refused_or_names_no_file(data: st.DataObject) -> None:
    raw = bytearray(in_branch(outside()).SerializeToString())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        refuse_external_data(bytes(raw), "p")
    except BundleError:
        return
    try:  # then onnx must not find it either
        read = onnx.load_from_string(bytes(raw))
    except Exception:
        return
    tensors = [
        attribute.t
        for node in read.graph.node
        for branch in node.attribute
        for attribute in branch.g.node[0].attribute
    ]
    assert not any(tensor.external_data or tensor.data_location for tensor in tensors)


def test_graphs_without_end_and_the_other_format_are_refused() -> None:
    graph = b""
    for _ in range(70):
        graph = within(1, within(5, within(6, graph)))  # the graph of an attribute of a node of a graph
    with pytest.raises(BundleError, match="lie too deep"):
        refuse_external_data(within(7, graph), "p")
    with pytest.raises(BundleError, match="is no ONNX protobuf"):
        refuse_external_data(b"\x10\0\0\0ORTM" + bytes(64), "p")


def within(number: int, content: bytes) -> bytes:
    """A protobuf field that holds a message."""
    size, length = b"", len(content)
    while length > 127:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + content
