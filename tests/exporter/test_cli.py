"""The command line around the exporter, in this process: a subprocess would import torch anew each time."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge_fl.cli.main import run
from edge_fl.core.bundle import Bundle

_MODEL = """
import torch
from torch import nn

class Doing(nn.Module):
    def __init__(self, do):
        super().__init__()
        self.do, self.calls = do, 0
    def forward(self, x):
        return self.do(self, x)

def around(do):
    hidden = nn.Linear(64, 8)
    return nn.Sequential(nn.Flatten(), hidden, Doing(do), nn.Linear(8, 10))

def good():
    hidden = [nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 6), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(6, 10))

def normalised():
    hidden = [nn.Linear(64, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(4, 10))

def regression(): return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
def absolute(outputs, y): return (outputs - y).abs().mean(dim=1)

def transposed(): return nn.Sequential(nn.ConvTranspose3d(1, 4, 3), nn.Flatten(), nn.Linear(400, 10))
def nothing(): return None
def broken(): raise ValueError("no luck")
def leaving(): raise SystemExit(0)
def branching(): return around(lambda self, x: x if x.sum() > 0 else -x)
def unsupported(): return around(lambda self, x: x.cumprod(dim=1))
def failing(): return around(lambda self, x: x @ x)
def with_weight(change):
    model = good()
    change(model[1])
    return model
def of_complex(): return with_weight(lambda layer: setattr(layer, "bias", nn.Parameter(torch.zeros(8) + 0j)))
def of_integers():
    bias = nn.Parameter(torch.zeros(8, dtype=torch.int64), requires_grad=False)
    return with_weight(lambda layer: setattr(layer, "bias", bias))
def not_finite(): return with_weight(lambda layer: layer.weight.data.fill_(float("nan")))
def counting():
    def do(self, x):
        self.calls += 1
        return x
    return around(do)
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def edge_fl(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["edge-fl", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = capfd.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "model.py"
    file.write_text(_MODEL)
    return file


@pytest.mark.parametrize(
    ("command", "exit_code", "says"),
    [
        ("nothing", 10, "returned an object of type 'NoneType'"),
        ("broken", 10, "ValueError: no luck"),
        ("leaving", 10, "SystemExit"),
        ("missing", 10, "no function 'missing'"),
        ("failing", 10, "forward fails on 3 samples of shape (1, 8, 8) in '2'"),
        ("transposed", 11, "'0' is a ConvTranspose3d, which cannot be trained: use an upsampling"),
        ("branching", 11, "The forward of '2' cannot be traced at model.py:"),
        ("branching", 11, "use torch.where"),
        (
            "unsupported",
            11,
            "'aten.cumprod.default' in '2': write it with exp of the cumsum of the logarithms",
        ),
        ("counting", 11, "The forward of '2' changes its attribute 'calls'"),
        ("of_complex", 11, "'1.bias' is complex64: make two float32 parameters"),
        ("of_integers", 11, "'1.bias' is int64: it cannot be trained, so make it a buffer"),
        ("not_finite", 11, "'1.weight' holds NaN"),
        ("good --dataset cifar-11", 14, "no data set"),
        ("good --dataset shakespeare", 10, "forward fails"),
        ("good --runtime tflite", 18, "no runtime 'tflite'"),
        ("good --widths 1.5", 15, "width must be in (0, 1]"),
        ("good --widths nan", 15, "width must be in (0, 1]"),
        ("good --widths ''", 15, "--widths takes shares"),
        ("good --batch 0", 15, "at least one sample"),
        ("good --optimizer lbfgs", 15, "no optimizer 'lbfgs'; there are sgd, adam"),
        ("good --optimizer adam --momentum 0.9", 15, "Adam has its own"),
        ("good --momentum 1", 15, "below 1"),
        ("good --weight-decay -1", 15, "Weight decay"),
        ("good --clip-norm 0", 15, "must be above 0"),
        ("good --loss hinge", 15, "no loss 'hinge'"),
        ("good --loss mse", 15, "compares with float32"),
        ("good --variant gradual", 15, "no train step 'gradual'"),
        ("good --batch-norm batch", 15, "no batch-norm policy 'batch'"),
        ("good --metadata colour", 15, "KEY=VALUE"),
        ("good --class-names nowhere.txt", 14, "cannot be read from 'nowhere.txt'"),
        ("good --input-shape 1x8x8", 15, "leave --dataset or the others out"),
    ],
)
def test_a_refused_export_is_one_sentence_and_an_exit_code(
    edge_fl: Command, model: Path, command: str, exit_code: int, says: str
) -> None:
    output = model.parent / "bundle"
    function, *options = shlex.split(command)
    done = edge_fl("export", f"{model}:{function}", "--dataset", "digits", *options, "-o", output)

    assert done.code == exit_code, done.err
    last = done.err.strip().splitlines()[-1]
    assert says in last
    assert last.startswith("edge-fl: ")
    assert last.endswith(".")
    assert "Traceback" not in done.err
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (["nowhere/model.py:build", "--dataset", "digits"], 10, "nowhere/model.py"),
        (["zoo:lenet"], 10, "no model 'lenet' in the zoo"),
        (["MODEL:regression"], 15, "Give --dataset NAME"),
        (["MODEL:regression", "--input-shape", "5"], 15, "Give --dataset NAME"),
        (["MODEL:regression", "--input-shape", "5,1", "--classes", "2"], 15, "--input-shape takes a shape"),
        (["MODEL:regression", "--input-shape", "5", "--classes", "0"], 15, "at least one class"),
        (["MODEL:regression", "--input-shape", "5", "--classes", "3"], 14, "gives (2,) for one sample"),
    ],
)
def test_what_a_model_is_for_must_be_said_once(
    edge_fl: Command, model: Path, arguments: list[str], exit_code: int, says: str
) -> None:
    done = edge_fl("export", *(argument.replace("MODEL", str(model)) for argument in arguments))

    assert (done.code, says in done.err) == (exit_code, True), done.err


def test_class_names_are_counted(edge_fl: Command, model: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("zero\none\n")
    done = edge_fl("export", f"{model}:good", "--dataset", "digits", "--class-names", names)

    assert (done.code, "2 class names for 10 classes" in done.err) == (14, True), done.err


def test_every_setting_reaches_the_bundle_and_inspect_tells_it(
    edge_fl: Command, model: Path, tmp_path: Path
) -> None:
    names, output = tmp_path / "names.txt", tmp_path / "bundle"
    names.write_text("".join(f"digit {i}\n" for i in range(10)))
    done = edge_fl(
        *("export", f"{model}:normalised", "--dataset", "digits", "-o", output, "--widths", "1.0,0.5", "--json"),
        *("--momentum", "0.9", "--weight-decay", "0.0005", "--clip-norm", "1", "--batch-norm", "per-width"),
        *("--loss", "masked_cross_entropy", "--variant", "plain", "--variant", "noise", "--name", "small"),
        *("--class-names", names, "--metadata", "team=vision", "--metadata", "note=a=b"),
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["programs"] == {"onnx": 3}
    assert "exporting: onnx: comparing with torch" in done.err
    manifest = Bundle.load(output).manifest
    assert manifest.class_names[9] == "digit 9"
    assert manifest.metadata == {"team": "vision", "note": "a=b"}

    found: dict[str, Any] = json.loads(edge_fl("inspect", output, "--json").out)
    assert found["name"] == "small"
    assert found["loss"] == "masked_cross_entropy"
    assert (found["batch_norm"], found["statistic_widths"]) == ("per-width", [1.0, 0.5])
    assert found["variants"] == ["noise", "plain"]
    optimizer = found["optimizer"]
    assert (optimizer["momentum"], optimizer["weight_decay"], optimizer["clip"]) == (0.9, 0.0005, 1.0)
    assert [(at["width"], at["parameters"], at["macs"]) for at in found["widths"]] == [
        (1.0, 64 * 4 + 2 * 4 + 4 * 10 + 10, 64 * 4 + 4 * 10),
        (0.5, 64 * 2 + 2 * 2 + 2 * 10 + 10, 64 * 2 + 2 * 10),
    ]
    assert found["program_bytes"]["onnx"] == sum(program["bytes"] for program in found["programs"])
    told = edge_fl("inspect", output).out
    assert "sgd momentum 0.9 weight_decay 0.0005 clip 1.0, batch-norm per-width (1, 0.5)" in told
    assert "digit 9" in told


@pytest.mark.matrix
def test_a_model_exported_twice_is_the_same_bundle(edge_fl: Command, model: Path, tmp_path: Path) -> None:
    command = [
        "export",
        f"{model}:normalised",
        "--dataset",
        "digits",
        "--runtime",
        "onnx",
        "--runtime",
        "torch-eager",
    ]
    assert edge_fl(*command, "-o", tmp_path / "here").code == 0
    there, other = tmp_path / "there", {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-m", "edge_fl", *command, "-o", there], env=other, check=True)
    assert Bundle.load(there).manifest.files == Bundle.load(tmp_path / "here").manifest.files
    assert (there / "manifest.sha256").read_text() == (tmp_path / "here" / "manifest.sha256").read_text()


def test_a_model_without_a_data_set_and_a_loss_of_ones_own(edge_fl: Command, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    loss = ("--loss", f"{model}:absolute", "--optimizer", "adam")
    shapes = ("--input-shape", "5", "--target-shape", "2")
    done = edge_fl("export", f"{model}:regression", *shapes, *loss, "--widths", "1,0.5", "-o", output)

    assert done.code == 0, done.err
    manifest = Bundle.load(output).manifest
    assert (manifest.dataset, manifest.loss, manifest.target.shape) == ("", "absolute", (2,))
    assert manifest.optimizer.name == "adam"


def test_the_input_is_normalised_by_data(edge_fl: Command, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))\n"
    )
    (tmp_path / "train.csv").write_text("a,b,label\n1,5,0\n3,5,1\n5,5,2\n")
    output = tmp_path / "bundle"
    shapes = ("--input-shape", "2", "--classes", "3")
    data = f"csv:{tmp_path / 'train.csv'}"
    done = edge_fl("export", f"{tmp_path / 'model.py'}:build", *shapes, "--normalise-by", data, "-o", output)

    assert done.code == 0, done.err
    assert Bundle.load(output).manifest.columns == ("a", "b")
    held = Bundle.load(output).frozen.whole
    assert held["input_mean"].tolist() == [3.0, 5.0]
    assert held["input_std"].tolist() == pytest.approx([(8 / 3) ** 0.5, 1.0])
    refused = edge_fl("export", f"{tmp_path / 'model.py'}:build", *shapes, "--mean", "1,2", "-o", output)
    assert "Give --mean and --std, or --normalise-by DATA" in refused.err


def test_check_says_what_is_masked_and_what_is_not_and_writes_nothing(
    edge_fl: Command, model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "bundle"
    options = ("--dataset", "digits", "--check", "--runtime", "onnx", "-o", output)
    found = json.loads(edge_fl("export", f"{model}:good", *options, "--json").out)

    assert found["blocks"] == {"3": 6}
    assert found["tensors"]["5.weight"] == {"rows": [[], []], "units": [[], ["3"]]}
    assert "does not map 0 to 0" in found["dense"]["1"]
    assert found["batch_norm"] is None
    assert found["missing"] == {"onnx": []}
    assert found["widths"][0]["macs"] == 64 * 8 + 8 * 6 + 6 * 10
    assert found["step_memory"]["onnx"]["1"] > found["step_memory"]["onnx"]["0.4"] > 1_000_000
    told = edge_fl("export", f"{model}:good", *options)
    assert "it is the output layer" in told.out
    assert "onnx: has a kernel for every operation" in told.out
    assert "MB of a train step, beside the loaded libraries" in told.out
    assert not output.exists()


def test_check_names_what_a_runtime_cannot_train_and_how_batch_norm_is_treated(
    edge_fl: Command, model: Path
) -> None:
    options = ("--dataset", "digits", "--check", "--runtime", "onnx", "--runtime", "torch_eager", "--json")
    found = json.loads(edge_fl("export", f"{model}:unsupported", *options).out)

    instead = "exp of the cumsum of the logarithms"
    missing = {"operation": "aten.cumprod.default", "module": "2", "instead": instead}
    assert found["missing"] == {"onnx": [missing], "torch_eager": []}
    found = json.loads(edge_fl("export", f"{model}:normalised", *options, "--batch-norm", "frozen").out)
    policy = found["batch_norm"]
    assert (policy["policy"], policy["layers"]) == ("frozen", ["2"])
    assert list(policy["alternatives"]) == [
        "--batch-norm tracked",
        "--batch-norm per-width",
        "--batch-norm static",
        "GroupNorm in the model",
    ]


def test_a_zoo_model_brings_its_data_set(edge_fl: Command) -> None:
    found = json.loads(edge_fl("export", "zoo:digits-mlp", "--check", "--runtime", "torch_eager", "--json").out)

    assert found["blocks"] == {"1": 32, "3": 32}


def test_inspect_needs_no_torch_and_agrees_with_the_exporter(digits_bundle: Bundle) -> None:
    code = (
        "from edge_fl.cli.main import run\ntry: run()\nfinally:\n import sys; assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", str(digits_bundle.root), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["blocks"] == {"1": 32, "3": 32}
    dense, half = found["widths"]
    assert dense["parameters"] == digits_bundle.layout.size
    assert dense["macs"] == 64 * 32 + 32 * 32 + 32 * 10
    assert dense["frame_bytes"]["rows"] >= 4 * digits_bundle.layout.size
    assert half["frame_bytes"]["units"] < half["frame_bytes"]["rows"] < dense["frame_bytes"]["rows"]


def test_inspect_prints_tables(edge_fl: Command, digits_bundle: Bundle) -> None:
    told = edge_fl("inspect", digits_bundle.root).out

    assert "rows mode" in told
    assert "executorch/eval.pte" in told


def test_inspect_refuses_what_is_no_bundle(edge_fl: Command, tmp_path: Path) -> None:
    done = edge_fl("inspect", tmp_path)

    assert done.code == 13
    assert "no bundle" in done.err
