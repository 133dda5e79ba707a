"""What every test shares."""

import logging
import os
import subprocess

import pytest
from hypothesis import settings

from edge_fl.core.bundle import Bundle
from edge_fl.core.inputs import Input
from tests.once import exported_once

# As an installed edge-fl has it by itself.
pytest_plugins = ["device_sim.pytest_plugin"]

# A shared machine makes any deadline a matter of luck; pytest's own timeout catches what hangs.
settings.register_profile("edge-fl", deadline=None, max_examples=int(os.environ.get("EDGE_FL_EXAMPLES", "100")))
settings.load_profile("edge-fl")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol() -> None:
    """Keep pytest from torch's structured traces, which it would take as of any logger that hands nothing on.

    While somebody takes them, torch writes a stack for each symbol and each tensor of a trace.
    """
    logging.getLogger("torch.__trace").propagate = True


@pytest.fixture(scope="session")
def digits_bundle(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Bundle:
    """The digits MLP in every runtime; exported once, as ExecuTorch's compiler takes its time."""
    import torch

    from exporter.export import Target, export_bundle
    from exporter.zoo import mlp

    torch.set_num_threads(1)
    torch.manual_seed(0)
    target = Target(
        name="digits-mlp",
        dataset="digits",
        input=Input((1, 8, 8), "float32"),
        classes=10,
        runtimes=("onnx", "executorch", "torch_eager"),
        widths=(1000, 500),
        variants=("plain", "distil", "vardrop"),
    )
    return exported_once(
        tmp_path_factory,
        "digits",
        lambda root: export_bundle(mlp.digits(), target, root),
        workers=worker_id != "master",
    )


@pytest.fixture(scope="session")
def torch_bundle(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Bundle:
    """The digits MLP in the two runtimes that simulations train in."""
    import torch

    from exporter.export import Target, export_bundle
    from exporter.zoo.mlp import digits

    torch.set_num_threads(1)
    torch.manual_seed(0)
    target = Target(
        "digits-mlp",
        "digits",
        Input((1, 8, 8), "float32"),
        10,
        ("onnx", "torch_eager"),
        variants=("plain", "distil", "vardrop"),
    )
    return exported_once(
        tmp_path_factory,
        "torch",
        lambda root: export_bundle(digits(), target, root),
        workers=worker_id != "master",
    )


@pytest.fixture(scope="session")
def adapter_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """For the digits: a droppable layer, a frozen one behind it, and an adapter beside that."""
    import torch
    from torch import nn

    from exporter.export import Target, export_bundle
    from exporter.fine_tuning import train_only

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 10)
    )
    model = train_only(model, ["1.*", "lora:5:r=4"])
    target = Target(
        "digits-adapter",
        "digits",
        Input((1, 8, 8), "float32"),
        10,
        ("onnx", "torch_eager"),
        widths=(1000, 500),
    )
    return export_bundle(model, target, tmp_path_factory.mktemp("adapter") / "bundle")


@pytest.fixture(scope="session")
def personal_bundle(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Bundle:
    """The digits MLP, whose last layer each device keeps to itself."""
    import torch

    from exporter.export import Target, export_bundle
    from exporter.zoo import mlp

    torch.manual_seed(0)
    target = Target(
        "digits-personal",
        "digits",
        Input((1, 8, 8), "float32"),
        10,
        ("onnx", "torch_eager"),
        widths=(1000, 500),
        variants=("plain", "noise", "distil"),
        personal=("5.*",),
    )
    return exported_once(
        tmp_path_factory,
        "personal",
        lambda root: export_bundle(mlp.digits(), target, root),
        workers=worker_id != "master",
    )


@pytest.fixture(scope="session")
def ort_training_python() -> str:
    """The interpreter of onnxruntime-training's own environment, as `make test` builds and names it."""
    python = os.environ.get("EDGE_FL_ORT_TRAINING_PYTHON", "")
    code = "from onnxruntime.capi.onnxruntime_pybind11_state import GradientGraphBuilder"
    if python and subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0:
        return python
    reason = "EDGE_FL_ORT_TRAINING_PYTHON names no Python with onnxruntime-training"
    if os.environ.get("EDGE_FL_REQUIRE_ORT_TRAINING") or os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and EDGE_FL_REQUIRE_ORT_TRAINING or CI is set")
    pytest.skip(reason)
