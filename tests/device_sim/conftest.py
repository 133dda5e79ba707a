"""A bundle that is quick to export: without ExecuTorch."""

import pytest
import torch

from edge_fl.core.bundle import Bundle
from edge_fl.core.inputs import Input
from exporter.export import Target, export_bundle
from exporter.zoo.mlp import digits
from tests.once import exported_once


@pytest.fixture(scope="session")
def torch_bundle(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Bundle:
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
