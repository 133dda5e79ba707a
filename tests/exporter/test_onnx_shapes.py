"""Reshapes whose shapes are settled at export, run with lengths that the export did not know."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime import InferenceSession

from exporter.onnx_shapes import settle_shapes


def program(target: list[int | str]) -> onnx.ModelProto:
    """``x [c, 4, b]`` to the shape ``target``, read from ``x`` node by node as torch's translation does."""
    c, b, four = "c", "b", 4
    axes = {c: 0, b: 2}
    nodes, parts = [], []
    for index, length in enumerate(target):
        if isinstance(length, int):
            nodes.append(helper.make_node("Constant", [], [f"n{index}"], value_ints=[length]))
        else:
            factor, _, name = length.rpartition("*")
            axis = axes[name]
            nodes.append(helper.make_node("Shape", ["x"], [f"s{index}"], start=axis, end=axis + 1))
            nodes.append(helper.make_node("Constant", [], [f"f{index}"], value_ints=[int(factor or 1)]))
            nodes.append(helper.make_node("Mul", [f"s{index}", f"f{index}"], [f"n{index}"]))
        parts.append(f"n{index}")
    nodes += [
        helper.make_node("Unsqueeze", ["x", "first"], ["apart"]),
        helper.make_node("Concat", parts, ["shape"], axis=0),
        helper.make_node("Reshape", ["apart", "shape"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "reshape",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [c, four, b])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, target)],
        [helper.make_tensor("first", TensorProto.INT64, [1], [0])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize(
    ("target", "computed"),
    [
        (["c", 2, 2, "b"], False),  # the first as it is, the last what is left
        (["4*c", "b"], True),  # two that differ
        (["c", "4*b"], False),
        ([2, "c", 2, "b"], True),
        (["b", "4*c"], True),
    ],
)
def test_shapes_are_constants_where_they_can_be_and_right_everywhere(
    target: list[int | str], computed: bool
) -> None:
    model = program(target)
    settle_shapes(model)
    onnx.checker.check_model(model, full_check=True)

    operations = {node.op_type for node in model.graph.node}
    assert "Unsqueeze" not in operations
    assert ("Shape" in operations) == computed
    session = InferenceSession(model.SerializeToString())
    for c, b in [(3, 5), (7, 2), (1, 1)]:
        x = np.random.default_rng(0).random((c, 4, b), dtype=np.float32)
        known = {"c": c, "b": b, "4*c": 4 * c, "4*b": 4 * b}
        shape = [length if isinstance(length, int) else known[length] for length in target]
        assert np.array_equal(session.run(None, {"x": x})[0], x.reshape(shape))


def test_equal_shapes_are_computed_once() -> None:
    model = program(["4*c", "b"])
    model.graph.node.append(helper.make_node("Relu", ["x"], ["r"]))
    again = helper.make_node("Reshape", ["r", "shape"], ["z"])
    model.graph.node.append(again)
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["4*c", "b"]))
    model.graph.value_info.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, ["c", 4, "b"]))

    settle_shapes(model)

    assert sum(node.op_type == "Concat" for node in model.graph.node) == 1
    assert sum(node.op_type == "Shape" for node in model.graph.node) == 2


def test_lengths_of_no_input_stay_as_they_were() -> None:
    model = program(["4*c", "b"])
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "c + 3*c"
    before = [node.op_type for node in model.graph.node]

    settle_shapes(model)

    assert [node.op_type for node in model.graph.node] == before
