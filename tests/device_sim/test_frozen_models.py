"""Fine-tuning in a simulation: both trainers, and frozen columns that each client's pattern cuts."""

from pathlib import Path

import numpy as np

import edge_fl
from edge_fl.core.bundle import Bundle


def test_both_trainers_train_the_same(adapter_bundle: Bundle, tmp_path: Path) -> None:
    layout = adapter_bundle.layout
    assert [(block.name, block.size) for block in layout.blocks] == [("1", 12), ("5.lora_A", 4)]
    assert [tensor.name for tensor in layout.frozen if not tensor.whole] == ["3.weight"]
    weights = []
    for trainer in ("stacked", "runtime"):
        run = edge_fl.simulate(
            adapter_bundle,
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
        assert np.abs(array - adapter_bundle.weights()[name]).max() > 0
