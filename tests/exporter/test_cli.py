import json
import subprocess
import sys
from pathlib import Path

import pytest

from edge_fl.bundle import Bundle

_RUN = "from edge_fl.cli.main import run; run()"
_MODEL = """
import torch
from torch import nn
def conv(): return nn.Sequential(nn.ConvTranspose2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10))
def nothing(): return None
def broken(): raise ValueError("no luck")
def good():
    hidden = [nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 6), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(6, 10))
"""


def edge_fl(*arguments: str, code: str = _RUN) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("function", "options", "exit_code", "says"),
    [
        ("conv", [], 11, "ConvTranspose2d"),
        ("nothing", [], 10, "returned an object of type 'NoneType'"),
        ("broken", [], 10, "ValueError: no luck"),
        ("missing", [], 10, "no function 'missing'"),
        ("good", ["--dataset", "cifar-11"], 14, "no data set"),
        ("good", ["--runtime", "tflite"], 18, "no runtime 'tflite'"),
        ("good", ["--width", "1.5"], 15, "width"),
    ],
)
def test_a_refused_export_is_one_sentence_and_an_exit_code(
    function: str, options: list[str], exit_code: int, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.py"
    file.write_text(_MODEL)
    output = tmp_path / "bundle"
    done = edge_fl("export", f"{file}:{function}", "--dataset", "digits", *options, "-o", str(output))

    assert done.returncode == exit_code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not output.exists()


def test_a_missing_model_file_is_named() -> None:
    done = edge_fl("export", "nowhere/model.py:build", "--dataset", "digits")

    assert done.returncode == 10
    assert "nowhere/model.py" in done.stderr


def test_check_says_what_is_masked_and_what_is_not_and_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(_MODEL)
    output = tmp_path / "bundle"
    done = edge_fl("export", f"{file}:good", "--dataset", "digits", "--check", "--json", "-o", str(output))

    found = json.loads(done.stdout)
    assert found["blocks"] == {"3": 6}
    assert found["tensors"]["5.weight"] == {"rows": [[], []], "units": [[], ["3"]]}
    assert "does not map 0 to 0" in found["dense"]["1"]
    assert not output.exists()


def test_inspect_needs_no_torch_and_measures_real_frames(digits_bundle: Bundle) -> None:
    code = _RUN.replace("run()", "\ntry: run()\nfinally:\n import sys; assert 'torch' not in sys.modules")
    done = edge_fl("inspect", str(digits_bundle.root), "--json", code=code)

    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert found["blocks"] == {"1": 32, "3": 32}
    assert found["parameters"]["1"] == digits_bundle.layout.size
    dense, half = found["frames"][0], found["frames"][-1]
    assert dense["rows"] >= 4 * digits_bundle.layout.size
    assert half["units"] < half["rows"] < dense["rows"]
    assert "rows mode" in edge_fl("inspect", str(digits_bundle.root)).stdout


def test_inspect_refuses_what_is_no_bundle(tmp_path: Path) -> None:
    done = edge_fl("inspect", str(tmp_path))

    assert done.returncode == 13
    assert "no bundle" in done.stderr
