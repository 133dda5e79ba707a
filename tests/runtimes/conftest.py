"""The environment of onnxruntime-training."""

import os
import subprocess

import pytest


@pytest.fixture(scope="session")
def ort_training_python() -> str:
    """Its interpreter, as `make test` builds and names it."""
    python = os.environ.get("EDGE_FL_ORT_TRAINING_PYTHON", "")
    code = "from onnxruntime.capi.onnxruntime_pybind11_state import GradientGraphBuilder"
    if python and subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0:
        return python
    reason = "EDGE_FL_ORT_TRAINING_PYTHON names no Python with onnxruntime-training"
    if os.environ.get("EDGE_FL_REQUIRE_ORT_TRAINING") or os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and EDGE_FL_REQUIRE_ORT_TRAINING or CI is set")
    pytest.skip(reason)
