"""What `export --check` says of a step's memory, against what a fresh process really takes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Input
from edge_fl.core.pattern import prefix_counts
from exporter.export import Target, check_model, export_bundle
from exporter.measure.memory import Work, peak_memory

_BATCH = 2000


@pytest.mark.parametrize("width", [1000, 500])
def test_a_step_takes_what_the_check_says(width: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    target = Target("mlp", "", Input((64,), "float32"), 10, ("onnx",), widths=(1000, 500), batch=_BATCH)
    said = check_model(model, target).memory[width]

    bundle = export_bundle(model, target, tmp_path / "bundle")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((_BATCH, 64)).astype(np.float32)
    batch = Batch(x, rng.integers(0, 10, _BATCH), np.ones(_BATCH, dtype=np.float32))
    taken = peak_memory(Work(bundle.root, "", "onnx", width, batch, threads=1))

    assert sum(prefix_counts(bundle.layout, width).values()) == width * 1024 // 1000
    assert said == pytest.approx(taken, rel=0.15)
