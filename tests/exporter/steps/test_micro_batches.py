"""Steps that look at a few samples together and sum their gradients: the same weights in less memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import edge_fl
from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle, Optimizer
from edge_fl.core.dropout import drawn_masks
from edge_fl.core.errors import ConfigError, EdgeFLError, RuntimeMissingError
from edge_fl.core.inputs import Input
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.runtimes.base import open_runtime
from exporter.export import Target, check_model


def model() -> nn.Module:
    """Wide where memory is, with what a loop could get wrong: dropout, a mask for each sample, writing in place."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.Linear(288, 12),
        nn.SiLU(),
        nn.Linear(12, 4),
    )


def exported(root: Path, micro_batch: int = 0, **more: Any) -> Bundle:
    options = {"runtimes": ["onnx", "torch-eager"], "optimizer": Optimizer(clip=0.5), "widths": [1.0, 0.5], **more}
    return edge_fl.export(
        options.pop("model", model()),
        torch.zeros(1, 1, 8, 8),
        batch=12,
        micro_batch=micro_batch,
        output=root,
        **options,
    )


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Bundle]:
    root = tmp_path_factory.mktemp("micro")
    return {size: exported(root / str(size), size) for size in (0, 4)}


def batch(real: int, size: int = 12) -> Batch:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((size, 1, 8, 8)).astype("f4"), rng.integers(0, 4, size)
    return Batch(x, y, (np.arange(size) < real).astype("f4"))


@pytest.mark.parametrize("real", [12, 6, 3])
def test_sums_are_what_one_pass_gives(bundles: dict[int, Bundle], real: int) -> None:
    """Also where the last micro-batches hold padding alone."""
    pattern = Pattern.seeded(bundles[0].layout, 500, key=1)
    start = Selection.of(pattern, "units").gather(bundles[0].weights())
    done = {}
    for size, bundle in bundles.items():
        masks = drawn_masks(bundle.manifest.dropout, pattern, batch=12, key=3)
        done[size] = open_runtime("onnx", bundle).train_step(pattern, 12)(start, batch(real), lr=0.5, extra=masks)
    assert done[4].loss == pytest.approx(done[0].loss, rel=1e-6)
    for name, array in done[0].tensors.items():
        np.testing.assert_allclose(done[4].tensors[name], array, atol=1e-6)
        assert np.abs(array - start[name]).max() > 1e-4


def test_a_program_has_the_loop(bundles: dict[int, Bundle]) -> None:
    """Else all activations would be there at once."""
    graph = onnx.load(bundles[4].root / "onnx" / "step-plain.onnx").graph
    assert [node.op_type for node in graph.node].count("Scan") == 1
    assert not any(node.op_type == "Conv" for node in graph.node)
    steps = [p for programs in bundles[4].manifest.programs.values() for p in programs if p.kind == "step"]
    assert {program.micro_batch for program in steps} == {4}


def test_any_multiple_trains_and_no_other_batch(bundles: dict[int, Bundle], tmp_path: Path) -> None:
    bundle, pattern = bundles[4], Pattern.full(bundles[4].layout)
    runtime = open_runtime("onnx", bundle)
    masks = drawn_masks(bundle.manifest.dropout, pattern, batch=8, key=3)
    assert np.isfinite(runtime.train_step(pattern, 8)(bundle.weights(), batch(8, 8), lr=0.1, extra=masks).loss)
    with pytest.raises(RuntimeMissingError):
        runtime.train_step(pattern, 10)
    data = batch(12).x, batch(12).y
    with pytest.raises(ConfigError, match="take 4 samples at a time: give a --batch that is a multiple, not 10"):
        edge_fl.simulate(bundle, data, clients=2, batch=10, output=tmp_path / "no")


@pytest.mark.parametrize("trainer", ["stacked", "runtime"])
def test_a_simulation_is_that_of_whole_batches(bundles: dict[int, Bundle], tmp_path: Path, trainer: str) -> None:
    rng = np.random.default_rng(1)
    data = rng.standard_normal((60, 1, 8, 8)).astype("f4"), rng.integers(0, 4, 60)
    found = [
        edge_fl.simulate(
            bundle, data, method=edge_fl.FedDrop(dropout=0.5), clients=3, rounds=2, local_steps=3, batch=12,
            trainer=trainer, output=tmp_path / str(size),
        ).weights
        for size, bundle in bundles.items()
    ]  # fmt: skip
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, atol=1e-5)


@pytest.mark.matrix
@pytest.mark.parametrize("runtime", ["executorch", "onnx"])
def test_loops_in_the_loop_train(runtime: str, tmp_path: Path) -> None:
    recurrent = nn.Sequential(nn.Flatten(1, 2), Last(), nn.Linear(6, 4))
    found = exported(tmp_path / "b", 4, runtimes=[runtime], variants=["noise"], model=recurrent)
    assert found.manifest.parity[runtime].weights < 1e-5


class Last(nn.GRU):
    """The last state of a picture's rows."""

    def __init__(self) -> None:
        super().__init__(8, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x)[0][:, -1]


def normalised() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"micro_batch": 5}, "Micro-batches of 5 samples do not divide a batch of 12"),
        ({"micro_batch": 12}, "Micro-batches of 12 samples do not divide"),
        ({"micro_batch": -1}, "Micro-batches of -1 samples"),
        ({"micro_batch": 4, "runtimes": ["executorch-training"]}, "has no micro-batches: take onnx or executorch"),
        ({"micro_batch": 4, "variants": ["vardrop"]}, "'vardrop' has no micro-batches"),
        (
            {"micro_batch": 4, "model": normalised()},
            "BatchNorm normalises by whole batches: give --batch-norm frozen",
        ),
    ],
)
def test_what_cannot_be_summed_is_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(EdgeFLError, match=says):
        exported(tmp_path / "b", **options)
    assert not (tmp_path / "b").exists()


def test_check_counts_the_memory_of_one_micro_batch() -> None:
    target = Target("m", "", Input((1, 8, 8), "float32"), 4, ("onnx",), batch=400)
    whole, part = (check_model(model(), replace(target, micro_batch=size)).memory[1000] for size in (0, 4))
    activations = 400 * 8 * 36 * 4
    assert whole - part > activations
