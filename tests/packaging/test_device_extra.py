"""The device extra in an environment of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.packaging
@pytest.mark.timeout(600)
@pytest.mark.parametrize("runtime", ["onnx", "executorch"])
def test_the_device_extra_trains_without_torch(runtime: str) -> None:
    command = [sys.executable, ROOT / "scripts" / "device_footprint.py", "--runtime", runtime, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert not {"torch", "torchao", "onnx", "array-api-compat"} & set(figures["packages"])
    assert ("executorch" in figures["packages"]) == (runtime == "executorch")
    assert {"numpy", "msgspec", "paho-mqtt", "onnxruntime", "typer", "edge-fl"} <= set(figures["packages"])
    assert (figures["exit_code"], figures["rounds"]) == (0, 5)
