"""Frozen matrices stored as float16 or int8: a part of the file, and what is trained is the rounded model."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import edge_fl
from edge_fl.cli.main import app
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, UnsupportedModelError
from edge_fl.core.pattern import Pattern
from edge_fl.data.registry import load_dataset
from exporter.frozen_dtype import round_frozen

TRAINED = ["1.*", "6.*"]


def model() -> nn.Sequential:
    """Units of the first layer are columns of the second, which is frozen."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 24),
        nn.LayerNorm(24),
        nn.ReLU(),
        nn.Linear(24, 10),
    )


def rounded(dtype: str) -> nn.Sequential:
    """By hand: to the nearest number of float16, or of 127 steps to the largest of a row."""
    narrow = model()
    weight = narrow[3].weight.data
    if dtype == "float16":
        narrow[3].weight.data = weight.half().float()  # type: ignore[union-attr, operator]
    else:
        step = weight.abs().amax(1, keepdim=True) / 127  # type: ignore[union-attr, operator]
        narrow[3].weight.data = (weight / step).round() * step  # type: ignore[operator]
    return narrow


@pytest.fixture(scope="module", params=[pytest.param("float16", marks=pytest.mark.matrix), "int8"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return edge_fl.export(
        model(), torch.zeros(2, 1, 8, 8), train=TRAINED, frozen_dtype=request.param, batch=20, widths=[1.0, 0.5],
        runtimes=["onnx", "torch-eager", "executorch"], output=tmp_path_factory.mktemp("narrow") / "b",
    )  # fmt: skip


@pytest.fixture
def dtype(bundle: Bundle) -> str:
    return bundle.layout.frozen[0].dtype


def test_matrices_alone_are_stored_so(bundle: Bundle, dtype: str) -> None:
    stored = {tensor.name: (tensor.shape, tensor.dtype) for tensor in bundle.layout.frozen}
    rest = dict.fromkeys(("3.bias", "4.weight", "4.bias"), ((24,), "float32"))
    scales = {"3.weight/int8_scale": ((24, 1), "float32")} if dtype == "int8" else {}
    assert stored == {"3.weight": ((24, 32), dtype), **rest, **scales}
    vectors = (len(stored) - 1) * 128 - 32  # each begins at a multiple of 64 bytes
    assert (bundle.root / "frozen.bin").stat().st_size == 32 * 24 * (2 if dtype == "float16" else 1) + vectors
    assert max(parity.weights for parity in bundle.manifest.parity.values()) < 1e-5


def test_whole_numbers_times_scales_are_the_rounded_model(bundle: Bundle, dtype: str) -> None:
    held = bundle.frozen.whole
    kept = bundle.frozen.kept(Pattern.full(bundle.layout))
    found = kept["3.weight"].astype(np.float32) * held.get("3.weight/int8_scale", np.float32(1))
    np.testing.assert_allclose(found, rounded(dtype)[3].weight.detach(), rtol=2e-4, atol=1e-7)  # type: ignore[arg-type]
    if dtype == "int8":
        assert np.abs(kept["3.weight"]).max(axis=1).tolist() == [127] * 24


@pytest.mark.parametrize(
    ("trainer", "runtime"), [("runtime", "onnx"), ("runtime", "executorch"), ("stacked", None)]
)
def test_what_is_trained_is_the_rounded_model(
    bundle: Bundle, dtype: str, tmp_path: Path, trainer: str, runtime: str | None
) -> None:
    """Three steps of the first half of the units, beside plain torch of a sub-network cut by hand."""
    samples = load_dataset("digits").train.take(np.arange(20))
    run = edge_fl.simulate(
        bundle, (samples.x, samples.y), method="heterofl", parameters={"levels": ["b"]},
        clients=1, fraction=1, rounds=1, local_steps=3, batch=20, lr=0.5, trainer=trainer, runtime=runtime,
        output=tmp_path / "run",
    )  # fmt: skip
    whole = rounded(dtype)
    first, second, norm, last = whole[1], whole[3], whole[4], whole[6]
    weight, bias = (t.detach()[:16].clone().requires_grad_() for t in (first.weight, first.bias))
    head = [t.detach().clone().requires_grad_() for t in (last.weight, last.bias)]
    optimizer = torch.optim.SGD([weight, bias, *head], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        hidden = torch.relu(torch.from_numpy(samples.x).flatten(1) @ weight.T + bias) * 2
        hidden = torch.relu(norm(hidden @ second.weight[:, :16].T + second.bias))
        nn.functional.cross_entropy(hidden @ head[0].T + head[1], torch.from_numpy(samples.y)).backward()
        optimizer.step()
    # Scales have 16 bits, so that the bundle's rounding and this one part at the fifth digit.
    off = 1e-5 if dtype == "float16" else 1e-4
    for name, expected in {"1.weight": weight, "1.bias": bias}.items():
        np.testing.assert_allclose(run.weights[name][:16], expected.detach(), atol=off)
    np.testing.assert_allclose(run.weights["6.weight"], head[0].detach(), atol=off)


def test_each_use_widens_a_weight_of_its_own(bundle: Bundle, dtype: str) -> None:
    graph = onnx.load(bundle.root / "onnx" / "step-plain.onnx").graph
    made = [node.output[0] for node in graph.node if node.op_type == "Cast" and node.input[0] == "frozen.3.weight"]
    if dtype == "int8":
        made += [
            n.output[0] for n in graph.node if n.op_type == "Mul" and n.input[1] == "frozen.3.weight/int8_scale"
        ]
    read = [name for node in graph.node for name in node.input]
    assert len(made) == (2 if dtype == "float16" else 4)  # forward and backward
    assert [read.count(name) for name in made] == [1] * len(made)


@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.matrix), "int8"])
def test_extract_and_features_know_it(dtype: Literal["float16", "int8"], tmp_path: Path) -> None:
    bundle = edge_fl.export(
        model(), torch.zeros(2, 1, 8, 8), train=["6.*"], frozen_dtype=dtype, cache_features=True,
        output=tmp_path / "b",
    )  # fmt: skip
    run = edge_fl.simulate(bundle, "digits", clients=5, rounds=1, test_data="digits", output=tmp_path / "run")
    told = CliRunner().invoke(app, ["extract", str(tmp_path / "run"), "-o", str(tmp_path / "m.onnx")])
    assert told.exit_code == 0, told.output
    narrow, x = round_frozen(model_frozen(), dtype).eval(), load_dataset("digits").test.x[:5]
    narrow.load_state_dict({n: torch.from_numpy(w) for n, w in run.weights.items()}, strict=False)
    (found,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})
    with torch.no_grad():
        np.testing.assert_allclose(found, narrow(torch.from_numpy(x)), atol=1e-5)


def model_frozen() -> nn.Module:
    frozen = model()
    for name, parameter in frozen.named_parameters():
        parameter.requires_grad_(name.startswith("6."))
    return frozen


def test_numbers_beyond_float16_are_refused(tmp_path: Path) -> None:
    large = model()
    large[3].weight.data[0, 0] = 7e4  # type: ignore[union-attr, operator, index]
    with pytest.raises(ConfigError, match=r"'3\.weight' has numbers beyond float16's 65,504"):
        edge_fl.export(
            large, torch.zeros(2, 1, 8, 8), train=TRAINED, frozen_dtype="float16", output=tmp_path / "b"
        )
    told = CliRunner().invoke(
        app, ["export", "zoo:digits-mlp", "--frozen-dtype", "int4", "-o", str(tmp_path / "b")]
    )
    assert "stored as float32, float16 or int8, not as 'int4'" in told.output + str(told.exception)
    assert not (tmp_path / "b").exists()


def test_what_is_trained_is_not_stored_narrow(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No matrix of the model is frozen, so none can be stored as int8"):
        edge_fl.export(model(), torch.zeros(2, 1, 8, 8), frozen_dtype="int8", output=tmp_path / "b")


def test_rounding_what_is_rounded_changes_nothing() -> None:
    """The bundle's numbers are found from the model that was rounded."""
    wide = nn.Sequential(nn.Linear(50, 40, bias=False), nn.Conv2d(3, 5, 3), nn.Linear(4, 2)).requires_grad_(False)
    wide[0].weight.data *= torch.logspace(-40, 30, 40)[:, None]  # type: ignore[operator]
    wide[0].weight.data[3] = 0  # type: ignore[operator]
    once = round_frozen(wide, "int8")
    twice = round_frozen(once, "int8")
    for first, second in zip(once.parameters(), twice.parameters(), strict=True):
        assert torch.equal(first, second)
    assert (once[1].weight - wide[1].weight).abs().max() <= wide[1].weight.abs().max() / 250  # type: ignore[operator, union-attr]


def test_tensors_of_the_users_own_are_left_alone(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 4)
            self.register_buffer("w", torch.arange(6, dtype=torch.int8))
            self.register_buffer("w_int8_scale", torch.full((6,), 0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x * self.w.float() * self.w_int8_scale)  # type: ignore[operator, no-any-return]

    found = edge_fl.export(Own(), torch.zeros(1, 6), output=tmp_path / "b")
    assert {tensor.name: tensor.dtype for tensor in found.layout.frozen} == {
        "w": "int8",
        "w_int8_scale": "float32",
    }


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_what_cannot_be_rounded_is_refused_as_without(dtype: Literal["float16", "int8"], tmp_path: Path) -> None:
    broken = model()
    broken[3].weight.data[0, 0] = float("inf")  # type: ignore[union-attr, operator, index]
    with pytest.raises(UnsupportedModelError, match=r"'3\.weight' holds NaN or infinity"):
        edge_fl.export(broken, torch.zeros(2, 1, 8, 8), train=TRAINED, frozen_dtype=dtype, output=tmp_path / "b")


def test_a_bundle_says_what_is_frozen(bundle: Bundle, dtype: str) -> None:
    found = json.loads(CliRunner().invoke(app, ["inspect", str(bundle.root), "--json"]).output)["frozen"]
    assert (found["numbers"], found["bytes"]) == (24 * 32 + 3 * 24, (bundle.root / "frozen.bin").stat().st_size)
    assert found["dtypes"] == sorted(["float32", dtype])
