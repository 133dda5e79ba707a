import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx
import pytest

from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import RuntimeMissingError, UnsupportedModelError
from edge_fl.runtimes.base import open_runtime
from exporter.gradient_graph import gradient_graph
from exporter.limits import LIMIT
from exporter.source import Source
from tests.exporter.lower import proving

Exported = Callable[[str], tuple[Source, Bundle]]


@pytest.fixture(scope="module")
def exported(ort_training_python: str, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return cache(lambda name: proving.exported(name, "ort_training", tmp_path_factory.mktemp("ort") / "bundle"))


@pytest.fixture
def plain(exported: Exported) -> Bundle:
    return exported("mlp")[1]


@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("activations", "cnn"))]
)
def test_models_train_as_in_torch_with_every_optimiser(name: str, exported: Exported, tmp_path: Path) -> None:
    source, bundle = exported(name)
    assert bundle.manifest.parity["ort_training"].steps >= 5
    for kind, optimizer in proving.OPTIMIZERS.items():
        proving.prove(source, bundle, "ort_training", optimizer, tmp_path / kind)


def test_gradients_are_onnxruntimes_own_and_widths_stay_free(plain: Bundle) -> None:
    model = onnx.load_from_string(plain.read("ort_training/step-plain.onnx"))
    shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input
    }

    assert {"ReluGrad", "LogSoftmaxGrad_13"} <= {node.op_type for node in model.graph.node}
    assert {value.name for value in model.graph.output} >= {"loss", "tensor.0.weight_grad", "tensor.4.bias_grad"}
    assert all(isinstance(shapes[name][0], str) for name in ("tensor.0.weight", "tensor.2.weight", "x"))
    assert "lr" not in shapes


def test_a_device_of_its_environment_trains_without_torch_and_in_its_own_process(
    plain: Bundle, ort_training_python: str
) -> None:
    code = f"""
import sys
from pathlib import Path
import numpy as np
from edge_fl.core.bundle import Bundle
from edge_fl.core.batch import Batch
from edge_fl.core.pattern import Pattern
from edge_fl.runtimes.base import open_runtime
bundle = Bundle.load(Path({str(plain.root)!r}), runtime="ort_training")
full = {{t.name: np.zeros(t.shape, np.float32) for t in bundle.layout.tensors}}
batch = Batch(np.zeros((4, 6), np.float32), np.zeros(4, np.int64), np.ones(4, np.float32))
runtime = open_runtime("ort_training", bundle)
done = runtime.train_step(Pattern.full(bundle.layout), 4)(full, batch, lr=0.3)
assert abs(done.loss - np.log(3)) < 1e-6, done.loss
assert np.allclose(done.tensors["4.bias"], [0.2, -0.1, -0.1]), done.tensors
foreign = {{"torch", "safetensors"}} & set(sys.modules)
assert not foreign, foreign
assert runtime._remote is None
"""
    done = subprocess.run([ort_training_python, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_without_an_environment_of_its_own_it_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, plain: Bundle, tmp_path: Path
) -> None:
    monkeypatch.delenv("EDGE_FL_ORT_TRAINING_PYTHON")

    with pytest.raises(RuntimeMissingError, match=r"environment of its own.*EDGE_FL_ORT_TRAINING_PYTHON"):
        open_runtime("ort_training", plain)
    with pytest.raises(RuntimeMissingError, match="EDGE_FL_ORT_TRAINING_PYTHON"):
        proving.exported("mlp", "ort_training", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("name", ["mlp", pytest.param("cnn", marks=pytest.mark.matrix)])
def test_every_kind_of_train_step_is_as_in_torch(name: str, ort_training_python: str, tmp_path: Path) -> None:
    bundle = proving.exported_variants(name, "ort_training", tmp_path / "bundle", "noise", "distil")

    assert {program.variant for program in bundle.manifest.programs["ort_training"]} >= {"noise", "distil"}
    assert bundle.manifest.parity["ort_training"].weights <= LIMIT


def test_an_operation_without_gradient_is_refused_by_its_name(ort_training_python: str) -> None:
    nodes = [
        onnx.helper.make_node("Celu", ["w"], ["c"]),
        onnx.helper.make_node("ReduceSum", ["c"], ["loss"], keepdims=0),
    ]
    w = onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2])
    loss = onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])
    graph = onnx.helper.make_graph(nodes, "g", [w], [loss])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)

    with pytest.raises(UnsupportedModelError, match="gradient builder has not been registered: Celu"):
        gradient_graph(ort_training_python, model.SerializeToString(), "loss", ["w"])
    with pytest.raises(RuntimeMissingError, match="no Python at '/nowhere'"):
        gradient_graph("/nowhere", b"", "loss", [])
