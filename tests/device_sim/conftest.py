"""A bundle that is quick to export: without ExecuTorch."""

import pytest
import torch

from edge_fl.core.bundle import Bundle, Input
from exporter.export import Target, export_bundle
from exporter.zoo.mlp import digits


@pytest.fixture(scope="session")
def torch_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
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
    return export_bundle(digits(), target, tmp_path_factory.mktemp("digits") / "bundle")
