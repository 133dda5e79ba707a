"""Fine-tuning in a simulation: both trainers, and frozen columns that each client's pattern cuts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import edge_fl
from edge_fl.core.bundle import Bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A droppable layer, a frozen one behind it, and an adapter beside that."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 10)
    )
    return edge_fl.export(
        model,
        torch.zeros(4, 1, 8, 8),
        runtimes=["onnx", "torch-eager"],
        widths=(1.0, 0.5),
        train=["1.*", "lora:5:r=4"],
        output=tmp_path_factory.mktemp("bundle"),
    )


def test_both_trainers_train_the_same(bundle: Bundle, tmp_path: Path) -> None:
    layout = bundle.layout
    assert [(block.name, block.size) for block in layout.blocks] == [("1", 12), ("5.lora_A", 4)]
    assert [tensor.name for tensor in layout.frozen if not tensor.whole] == ["3.weight"]
    weights = []
    for trainer in ("stacked", "runtime"):
        run = edge_fl.simulate(
            bundle,
            "digits",
            method=edge_fl.FedDrop(dropout=0.5),
            trainer=trainer,
            clients=6,
            rounds=3,
            local_steps=4,
            output=tmp_path / trainer,
        )
        weights.append(run.weights)
    for name, array in weights[0].items():
        np.testing.assert_allclose(array, weights[1][name], atol=1e-5)
        assert np.abs(array - bundle.weights()[name]).max() > 0
