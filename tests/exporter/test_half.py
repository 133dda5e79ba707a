"""Frozen matrices stored as float16: half of the file, and what is trained is the rounded model."""

from pathlib import Path

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
from edge_fl.core.errors import ConfigError
from edge_fl.data.registry import load_dataset
from exporter.frozen import in_half

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


def rounded() -> nn.Sequential:
    half = model()
    half[3].weight.data = half[3].weight.data.half().float()  # type: ignore[union-attr, operator]
    return half


def exported(root: Path, *runtimes: str, **more: object) -> Bundle:
    return edge_fl.export(
        model(), torch.zeros(2, 1, 8, 8), train=TRAINED, frozen_dtype="float16", runtimes=runtimes, batch=20,
        widths=[1.0, 0.5], output=root, **more,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return exported(tmp_path_factory.mktemp("half") / "b", "onnx", "torch-eager", "executorch")


def test_matrices_alone_are_stored_so(bundle: Bundle) -> None:
    stored = {tensor.name: tensor.dtype for tensor in bundle.layout.frozen}
    assert stored == {"3.weight": "float16", "3.bias": "float32", "4.weight": "float32", "4.bias": "float32"}
    assert (bundle.root / "frozen.bin").stat().st_size == 2 * 32 * 24 + 3 * 128 - 32
    assert max(parity.weights for parity in bundle.manifest.parity.values()) < 1e-5


@pytest.mark.parametrize(
    ("trainer", "runtime"), [("runtime", "onnx"), ("runtime", "executorch"), ("stacked", None)]
)
def test_what_is_trained_is_the_rounded_model(
    bundle: Bundle, tmp_path: Path, trainer: str, runtime: str | None
) -> None:
    """Three steps of the first half of the units, beside plain torch of a sub-network cut by hand."""
    samples = load_dataset("digits").train.take(np.arange(20))
    run = edge_fl.simulate(
        bundle, (samples.x, samples.y), method="heterofl", parameters={"levels": ["b"]},
        clients=1, fraction=1, rounds=1, local_steps=3, batch=20, lr=0.5, trainer=trainer, runtime=runtime,
        output=tmp_path / "run",
    )  # fmt: skip
    whole = rounded()
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
    for name, expected in {"1.weight": weight, "1.bias": bias}.items():
        np.testing.assert_allclose(run.weights[name][:16], expected.detach(), atol=1e-5)
    np.testing.assert_allclose(run.weights["6.weight"], head[0].detach(), atol=1e-5)


def test_each_use_widens_a_weight_of_its_own(bundle: Bundle) -> None:
    graph = onnx.load(bundle.root / "onnx" / "step-plain.onnx").graph
    casts = [
        node.output[0] for node in graph.node if node.op_type == "Cast" and node.input[0] == "frozen.3.weight"
    ]
    read = [name for node in graph.node for name in node.input]
    assert len(casts) == 2  # forward and backward
    assert [read.count(name) for name in casts] == [1, 1]


def test_extract_and_features_know_it(tmp_path: Path) -> None:
    bundle = edge_fl.export(
        model(), torch.zeros(2, 1, 8, 8), train=["6.*"], frozen_dtype="float16", cache_features=True,
        output=tmp_path / "b",
    )  # fmt: skip
    run = edge_fl.simulate(bundle, "digits", clients=5, rounds=1, test_data="digits", output=tmp_path / "run")
    told = CliRunner().invoke(app, ["extract", str(tmp_path / "run"), "-o", str(tmp_path / "m.onnx")])
    assert told.exit_code == 0, told.output
    half, x = in_half(model_frozen()).eval(), load_dataset("digits").test.x[:5]
    half.load_state_dict({n: torch.from_numpy(w) for n, w in run.weights.items()}, strict=False)
    (found,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})
    with torch.no_grad():
        np.testing.assert_allclose(found, half(torch.from_numpy(x)), atol=1e-5)


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
    assert "stored as float32 or float16, not as 'int4'" in told.output + str(told.exception)
    assert not (tmp_path / "b").exists()
