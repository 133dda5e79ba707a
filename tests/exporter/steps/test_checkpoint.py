"""Steps that compute activations a second time: the same weights in less memory."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional

import edge_fl
from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle
from edge_fl.core.dropout import drawn_masks
from edge_fl.core.errors import EdgeFLError
from edge_fl.core.inputs import Input
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.runtimes.base import open_runtime
from exporter.export import Target, _cut, _read, _stored, check_model, export_bundle
from exporter.lower.executorch_decompositions import executorch_decompositions
from exporter.measure.memory import Work, peak_memory
from exporter.recurrent import unrolled
from exporter.steps import STEPS
from exporter.trace import export_static


class Blocks(nn.Module):
    """What a second pass could get wrong: statistics, dropout, writing in place, and a layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)  # held before what it comes after
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.2)
            )
            for channels in (1, 8, 8)
        )
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (*self.blocks, self.blocks[2]):
            x = block(x)
        return self.head(x.mean((2, 3)))


def model() -> nn.Module:
    torch.manual_seed(0)
    return Blocks()


def exported(root: Path, *checkpoint: str, **more: Any) -> Bundle:
    options = {"runtimes": ["onnx"], "widths": [1.0, 0.5], **more}
    return edge_fl.export(
        options.pop("model", model()),
        torch.zeros(1, 1, 8, 8),
        batch=12,
        checkpoint=checkpoint,
        output=root,
        **options,
    )


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Bundle]:
    root = tmp_path_factory.mktemp("checkpoint")
    return {False: exported(root / "kept"), True: exported(root / "anew", "blocks.*")}


def test_weights_are_those_of_kept_activations(bundles: dict[bool, Bundle]) -> None:
    pattern = Pattern.seeded(bundles[False].layout, 500, key=1)
    start = Selection.of(pattern, "units").gather(bundles[False].weights())
    rng = np.random.default_rng(0)
    batch = Batch(
        rng.standard_normal((12, 1, 8, 8)).astype("f4"), rng.integers(0, 4, 12), np.ones(12, dtype=np.float32)
    )
    done = {}
    for anew, bundle in bundles.items():
        masks = drawn_masks(bundle.manifest.dropout, pattern, batch=12, key=3)
        done[anew] = open_runtime("onnx", bundle).train_step(pattern, 12)(start, batch, lr=0.5, extra=masks)
    assert done[True].loss == pytest.approx(done[False].loss, rel=1e-6)
    for name, array in done[False].tensors.items():
        np.testing.assert_allclose(done[True].tensors[name], array, atol=1e-6, err_msg=name)


def test_a_layer_called_twice_moves_its_statistics_twice(bundles: dict[bool, Bundle]) -> None:
    momenta = bundles[True].manifest.momenta
    assert momenta["blocks.1.1.running_mean"] == 0.1
    assert momenta["blocks.2.1.running_mean"] == pytest.approx(0.19)


def test_blocks_run_twice(bundles: dict[bool, Bundle]) -> None:
    """onnxruntime must not take the second pass for the first, which would be the same in fewer operations."""
    counts = {anew: Counter(_operations(bundle)) for anew, bundle in bundles.items()}
    assert counts[True].total() > 1.2 * counts[False].total()
    assert counts[True]["GreaterOrEqual"] == counts[False]["GreaterOrEqual"] + 4  # a zero for each call


def _operations(bundle: Bundle) -> list[str]:
    return [node.op_type for node in onnx.load(bundle.root / "onnx" / "step-plain.onnx").graph.node]


class Encoder(nn.Module):
    """Layers that hold more in activations than in weights, and a first layer that is held last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0) for _ in range(6)
        )
        self.head, self.embed = nn.Linear(64, 4), nn.Linear(8, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def encoder_target(*checkpoint: str) -> Target:
    return Target(
        "encoder", "", Input((128, 8), "float32"), 4, ("onnx",), widths=(1000,), batch=16, checkpoint=checkpoint
    )


@pytest.mark.matrix
def test_a_step_takes_less_as_the_check_says(tmp_path: Path) -> None:
    """And takes it whatever the order in which a model holds its layers."""
    torch.manual_seed(0)
    encoder = Encoder()
    said = check_model(encoder, encoder_target("layers.*")).memory[1000]
    assert said < 0.6 * check_model(encoder, encoder_target()).memory[1000]

    bundle = export_bundle(encoder, encoder_target("layers.*"), tmp_path / "bundle")
    x = np.random.default_rng(0).random((16, 128, 8), dtype=np.float32)
    batch = Batch(x, np.zeros(16, np.int64), np.ones(16, dtype=np.float32))
    taken = peak_memory(Work(bundle.root, "", "onnx", 1000, batch, threads=1))
    assert taken == pytest.approx(said, rel=0.25)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": 4, "batch_norm": "frozen"},
        {"variants": ["distil", "noise"]},
    ],
)
def test_beside_other_ways_of_training(options: dict[str, Any], tmp_path: Path) -> None:
    assert exported(tmp_path / "b", "blocks.*", **options).manifest.parity["onnx"].weights < 1e-5


class Odd(nn.Module):
    """A block that a second pass must leave as it is, behind a layer and before a head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.head = kind, nn.Linear(64, 8), nn.Linear(8, 4)
        self.block = OddBlock(kind)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.gelu(self.first(x.flatten(1)))
        match self.kind:
            case "appends":
                seen: list[torch.Tensor] = []
                x = self.block(x, seen) + sum(seen)
            case "in place":
                x = x + self.block(x)
            case "same":
                x = self.block(x, x)
            case "scalar":
                x = self.block(x, self.scale)
            case _:
                x = self.block(x)
        if self.kind == "writes a slice":
            mask = torch.ones_like(x)
            mask[:, 0] = 0.5
            x = x * mask
        return self.head(x)


class OddBlock(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.a, self.b = kind, nn.Linear(8, 6), nn.Linear(6, 8)

    def forward(self, x: torch.Tensor, other: Any = None) -> torch.Tensor:
        if self.kind == "in place":
            x += 1.0
        if self.kind == "same":
            x = x if x is other else x * 2
        hidden = functional.gelu(self.a(x))
        if self.kind == "appends":
            other.append(x * 0.5)
        if self.kind == "scalar":
            hidden = hidden * torch.stack([other, other * 2]).sum()
        return x + self.b(hidden)


@pytest.mark.parametrize(
    "kind",
    [
        "writes a slice",
        *(pytest.param(kind, marks=pytest.mark.matrix) for kind in ("appends", "in place", "same", "scalar")),
    ],
)
def test_a_block_runs_as_it_would(kind: str, tmp_path: Path) -> None:
    """Whatever it does to what it is given, and whatever is written elsewhere."""
    torch.manual_seed(0)
    bundle = exported(tmp_path / "b", "block", model=Odd(kind))
    assert bundle.manifest.parity["onnx"].weights < 1e-5
    assert _operations(bundle).count("GreaterOrEqual") == 1


@pytest.mark.matrix
def test_a_first_block_of_tokens_runs_twice(tmp_path: Path) -> None:
    zeros = []
    for checkpoint in ((), ("0",)):
        torch.manual_seed(0)
        first = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 8), nn.GELU())
        tokens = torch.zeros(1, 5, dtype=torch.int64)
        bundle = edge_fl.export(
            nn.Sequential(first, nn.Flatten(), nn.Linear(40, 4)),
            tokens,
            batch=4,
            checkpoint=checkpoint,
            output=tmp_path / f"b{len(checkpoint)}",
        )
        zeros.append(_operations(bundle).count("GreaterOrEqual"))
    assert zeros[1] == zeros[0] + 1


@pytest.mark.matrix
def test_of_kept_features_what_is_trained_runs_twice(tmp_path: Path) -> None:
    """Also the block that the cut lies in."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 8)) for _ in range(3))
    chain = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *blocks, nn.Linear(8, 4))
    for number, train in enumerate((["4.*", "5.*"], ["3.2.*", "4.*", "5.*"])):
        options = {"cache_features": True, "train": train, "model": chain}
        bundle = exported(tmp_path / str(number), "[234]", **options)
        assert bundle.manifest.features is not None
        assert _operations(bundle).count("GreaterOrEqual") == 1 + number


def test_each_micro_batch_runs_its_blocks_twice_where_there_are_no_loops() -> None:
    """ExecuTorch's are one after another in one graph."""
    target = Target(
        "t", "", Input((1, 8, 8), "float32"), 4, ("executorch",), widths=(1000,), batch=12, micro_batch=4,
        batch_norm="frozen", checkpoint=("blocks.*",),
    )  # fmt: skip
    source = _cut(_read(_stored(model(), target), target, lambda _: None)[0], target)[0]
    step = STEPS.find("plain")(source)
    with unrolled():
        graph = export_static(step, source.full, 12, executorch_decompositions()).graph
    assert sum("ge.Scalar" in str(node.target) for node in graph.nodes) == 3 * 4


@pytest.mark.parametrize("runtime", [pytest.param("executorch", marks=pytest.mark.matrix), "torch-eager"])
def test_on_other_runtimes(runtime: str, tmp_path: Path) -> None:
    found = exported(tmp_path / "b", "blocks.*", runtimes=[runtime], widths=[0.5])
    assert found.manifest.parity[runtime.replace("-", "_")].weights < 1e-5


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rows(x[:, 0])[0][:, -1])


@pytest.mark.matrix
def test_a_loop_runs_twice(tmp_path: Path) -> None:
    counts = []
    for checkpoint in ((), ("rows",)):
        bundle = exported(tmp_path / f"b{len(checkpoint)}", *checkpoint, model=Recurrent())
        counts.append(_operations(bundle).count("Scan"))
    assert counts[1] == counts[0] + 1


def test_names_are_those_of_the_model_beside_its_preparation(tmp_path: Path) -> None:
    found = exported(tmp_path / "b", "blocks.?", normalise=([0.5], [0.25]), train=["head.*", "blocks.2.*"])
    assert found.manifest.parity["onnx"].weights < 1e-5
    assert "GreaterOrEqual" in _operations(found)


@pytest.mark.parametrize(
    ("checkpoint", "options", "says"),
    [
        ("block.*", {}, r"No module is called 'block.\*'"),
        ("blocks.9", {}, "did you mean 'blocks.[012]'"),
        ("blocks", {}, r"does not call 'blocks' in training: checkpoint its parts, 'blocks.\*'"),
        ("unused", {}, "does not call 'unused' in training: leave it out"),
        ("blocks.*", {"runtimes": ["executorch-training"]}, "keeps all activations: take onnx or executorch"),
    ],
)
def test_what_cannot_be_computed_anew_is_refused(
    checkpoint: str, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(EdgeFLError, match=says):
        exported(tmp_path / "b", checkpoint, **options)
    assert not (tmp_path / "b").exists()
