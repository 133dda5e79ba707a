"""Which tensors each device keeps to itself, by name, and what that leaves to be dropped and sent."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import edge_fl
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, EdgeFLError, ModelError, UnsupportedModelError
from edge_fl.core.layout import Block, Layout, Segment, Tensor
from exporter.api import export
from exporter.fine_tuning import train_only
from exporter.personal import personal_names, set_apart


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 36, 8),
        nn.ReLU(),
        nn.Linear(8, 10),
    )


def bundle_of(root: Path, *personal: str) -> Bundle:
    return export(model(), torch.zeros(3, 1, 8, 8), output=root, personal=personal)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ([], set()),
        (["6.*"], {"6.weight", "6.bias"}),
        (["norm"], {"1.weight", "1.bias", "1.running_mean", "1.running_var"}),
        (["1.bias"], {"1.bias"}),
        (["bias"], {"0.bias", "1.bias", "4.bias", "6.bias"}),
    ],
)
def test_what_is_named_is_personal(choices: list[str], expected: set[str]) -> None:
    """FedBN: of a BatchNorm all of whose parameters are, its statistics are, too."""
    assert personal_names(model(), choices) == expected


def test_a_kind_is_what_is_trained_of_it_and_statistics_without_parameters() -> None:
    plain = model()
    plain.append(nn.BatchNorm1d(10, affine=False))
    assert {"7.running_mean", "7.running_var"} < personal_names(plain, ["norm"])
    assert not any(name.startswith("7") for name in personal_names(plain, ["6.*"]))
    tuned = train_only(model(), ["6.*", "1.*"])
    assert personal_names(tuned, ["bias"]) == {"1.bias", "6.bias"}
    with pytest.raises(ConfigError, match=r"'0\.bias' is frozen"):
        personal_names(train_only(model(), ["6.weight"]), ["bias"])


def test_a_declared_block_must_leave_a_row_to_what_is_sent() -> None:
    rows = ((Segment("hidden"),), (Segment(None, inner=3),))
    layout = Layout((Block("hidden", 4),), (Tensor("a", (4, 3), rows, rows), Tensor("b", (4, 3), rows, rows)))
    assert [tensor.name for tensor in set_apart(layout, {"a"}).personal] == ["a"]
    with pytest.raises(UnsupportedModelError, match="Block 'hidden' has rows in personal tensors alone"):
        set_apart(layout, {"a", "b"})


@pytest.mark.parametrize(
    ("train", "choices", "error", "says"),
    [
        ([], ["head.*"], ModelError, "'head.\\*' names no parameter of the model"),
        (["6.*"], ["4.*"], ConfigError, "'4.bias' is frozen, so no device has its own: train it"),
        ([], ["*"], ConfigError, "Every trained parameter is personal, so devices share nothing"),
        (["6.*"], ["6.*"], ConfigError, "Every trained parameter is personal"),
    ],
)
def test_a_choice_that_makes_no_sense(
    train: list[str], choices: list[str], error: type[EdgeFLError], says: str
) -> None:
    with pytest.raises(error, match=says):
        personal_names(train_only(model(), train), choices)


def test_units_stay_whose_rows_nobody_sends(tmp_path: Path) -> None:
    """Of a personal layer; BatchNorm's rows are those of a convolution, which is sent."""
    head = bundle_of(tmp_path / "head", "6.*")
    assert set(head.layout.sizes) == {"0", "4"}
    norms = bundle_of(tmp_path / "norms", "norm")
    assert set(norms.layout.sizes) == {"0", "4"}
    hidden = bundle_of(tmp_path / "hidden", "4.*")
    assert set(hidden.layout.sizes) == {"0"}
    assert any(
        "'4' stays dense: its units have rows in personal tensors alone" in n for n in hidden.manifest.notes
    )


@pytest.mark.parametrize(
    "personal", ["0.*", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("norm", "6.*"))]
)
def test_a_delivered_model_has_the_personal_tensors_of_the_bundle(personal: str, tmp_path: Path) -> None:
    """Whatever their place among the others."""
    bundle = bundle_of(tmp_path / "bundle", personal)
    rng = np.random.default_rng(0)
    data = rng.standard_normal((120, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 120)
    run = edge_fl.simulate(bundle, data, clients=3, rounds=1, output=tmp_path / "run")
    expected = model()
    trained = {**bundle.frozen.personal, **run.weights}
    expected.load_state_dict({**expected.state_dict(), **{n: torch.tensor(a) for n, a in trained.items()}})
    assert any(not np.array_equal(run.weights[name], array) for name, array in bundle.weights().items())

    from typer.testing import CliRunner

    from edge_fl.cli.main import app

    words = ["extract", str(tmp_path / "run"), "--bundle", str(bundle.root), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "Each device has its own" in done.output
    card = json.loads((tmp_path / "out" / "model.onnx.json").read_text())
    assert card["personal"] == [tensor.name for tensor in bundle.layout.personal]
    assert card["parameters"] == sum(tensor.size for tensor in bundle.layout.parameters)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    (outputs,) = session.run(None, {session.get_inputs()[0].name: data[0][:5]})
    with torch.no_grad():
        np.testing.assert_allclose(outputs, expected.eval()(torch.tensor(data[0][:5])), atol=1e-5)
