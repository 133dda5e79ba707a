"""What `export --check` says of a step's memory, against what a fresh process really takes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.transformer import VisionTransformer
from edge_fl.core.batch import Batch
from edge_fl.core.inputs import Input
from edge_fl.core.pattern import prefix_counts
from exporter.export import Target, check_model, export_bundle
from exporter.fine_tuning import train_only
from exporter.measure.memory import Work, peak_memory

_BATCH = 2000


@pytest.mark.parametrize("width", [1000, pytest.param(500, marks=pytest.mark.matrix)])
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


@pytest.mark.matrix
def test_a_step_of_a_head_alone_takes_what_the_check_says(tmp_path: Path) -> None:
    """The memory of frozen layers is that of activations, of which GELU holds two at once."""
    torch.manual_seed(0)
    model = train_only(VisionTransformer(width=384, heads=6, depth=1, classes=10), ["head.*"])
    target = Target("head", "", Input((3, 64, 64), "float32"), 10, ("onnx",), widths=(1000,), batch=20)
    said = check_model(model, target).memory[1000]

    bundle = export_bundle(model, target, tmp_path / "bundle")
    x = np.random.default_rng(0).random((20, 3, 64, 64), dtype=np.float32)
    batch = Batch(x, np.zeros(20, np.int64), np.ones(20, dtype=np.float32))

    assert said == pytest.approx(peak_memory(Work(bundle.root, "", "onnx", 1000, batch, threads=1)), rel=0.12)
