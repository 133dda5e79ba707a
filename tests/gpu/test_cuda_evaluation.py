"""Scores on CUDA against those of onnxruntime on the CPU, and a simulation from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edge_fl.core.bundle import Bundle
from edge_fl.data.registry import load_dataset
from edge_fl.metrics.classification import TopK
from edge_fl.training.evaluator import Evaluator
from tests.device_sim.stacked_steps import step_bundle

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["sgd-conv", "per-width-conv", "sgd-recurrent", "masked-mlp"])
@pytest.mark.parametrize("width", [1000, 500])
def test_a_score_is_that_of_onnxruntime(tmp_path: Path, name: str, width: int) -> None:
    bundle = step_bundle(name, tmp_path / "bundle")
    test, weights = load_dataset("digits").test, bundle.weights()
    here, there = (
        Evaluator(bundle, test, (TopK(3),), device=device).score(weights, width) for device in ("cpu", "cuda")
    )
    assert here is not None
    assert there is not None
    assert there.loss == pytest.approx(here.loss, rel=1e-5)
    assert there.first == pytest.approx(here.first, abs=1 / len(test.y))


def test_a_simulation_on_cuda_from_the_command_line(torch_bundle: Bundle, tmp_path: Path) -> None:
    command = ["simulate", str(torch_bundle.root), "--method", "fjord", "--clients", "20", "--rounds", "40"]
    where = ["--trainer", "stacked", "--device", "cuda", "--output", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "edge_fl", *command, *where], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    last = (tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["scores"]["accuracy"] > 0.7
