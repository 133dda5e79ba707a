"""Features computed once a sample: what is trained on them is what is trained on samples."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import edge_fl
from broker.embedded import EmbeddedBroker
from edge_fl.cli.main import app
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.core.inputs import Input
from edge_fl.data.registry import load_dataset
from edge_fl.runtimes.base import Runtime
from edge_fl.runtimes.onnx import OnnxRuntime


def pictures() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8 * 36, 16), nn.ReLU(),
        nn.Linear(16, 10),
    )  # fmt: skip


class Texts(nn.Module):
    """Two layers of attention under a mask, whose upper one is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        self.lower, self.upper = (
            nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.out = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        left_out = attention_mask == 0
        hidden = self.lower(self.tokens(input_ids), src_key_padding_mask=left_out)
        return self.out(self.upper(hidden, src_key_padding_mask=left_out)[:, 0])  # type: ignore[no-any-return]


HEAD = ["4.*", "6.*"]
EXAMPLE = torch.zeros(3, 1, 8, 8)


def exported(root: Path, *, cached: bool, runtimes: tuple[str, ...] = ("onnx",), **more: Any) -> Bundle:
    return edge_fl.export(
        pictures(), EXAMPLE, train=HEAD, cache_features=cached, runtimes=runtimes, output=root, **more
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle]:
    root = tmp_path_factory.mktemp("pictures")
    runtimes = ("onnx", "torch-eager")
    return exported(root / "whole", cached=False, runtimes=runtimes), exported(
        root / "cut", cached=True, runtimes=runtimes
    )


@pytest.mark.parametrize("trainer", ["runtime", "stacked"])
@pytest.mark.parametrize("method", [pytest.param("fedavg", marks=pytest.mark.matrix), "fjord"])
def test_what_is_trained_on_features_is_what_is_trained_on_samples(
    pair: tuple[Bundle, Bundle], tmp_path: Path, trainer: str, method: str
) -> None:
    runs = [
        edge_fl.simulate(
            bundle, "digits", method=method, clients=5, tiers=5, fraction=1, rounds=2, local_steps=6, batch=20,
            trainer=trainer, test_data="digits", evaluate_on=2, test_share=0.2, output=tmp_path / str(i),
        )
        for i, bundle in enumerate(pair)
    ]  # fmt: skip
    for name, expected in runs[0].weights.items():
        np.testing.assert_allclose(runs[1].weights[name], expected, atol=1e-6)
    assert runs[1].metrics[-1].loss == pytest.approx(runs[0].metrics[-1].loss, rel=1e-5)
    assert runs[1].metrics[-1].on_devices.keys() == runs[0].metrics[-1].on_devices.keys() != set()


def test_a_step_reads_nothing_below(pair: tuple[Bundle, Bundle]) -> None:
    whole, cut = (bundle.manifest for bundle in pair)
    assert (whole.features, cut.features) == (None, Input((288,), "float32"))
    assert cut.input == whole.input
    below = {
        "frozen.0.weight",
        "frozen.0.bias",
        *(f"frozen.1.{n}" for n in ("weight", "bias", "running_mean", "running_var")),
    }
    for runtime in ("onnx", "torch_eager"):
        kinds = {program.kind: set(program.inputs) for program in cut.programs[runtime]}
        assert kinds["features"] == {*below, "x"}
        assert not below & (kinds["step"] | kinds["eval"])
        assert below < {name for program in whole.programs[runtime] for name in program.inputs}
    convolution = 36 * 8 * (9 + 1)  # products, and a bias
    assert [a.macs - b.macs for a, b in zip(whole.costs, cut.costs, strict=True) if a.macs and b.macs] == [
        convolution
    ] * 5


def test_extract_delivers_the_whole_model(pair: tuple[Bundle, Bundle], tmp_path: Path) -> None:
    run = edge_fl.simulate(pair[1], "digits", clients=5, rounds=1, test_data="digits", output=tmp_path / "run")
    told = CliRunner().invoke(app, ["extract", str(tmp_path / "run"), "-o", str(tmp_path / "m.onnx")])
    assert told.exit_code == 0, told.output
    model, x = pictures().eval(), load_dataset("digits").test.x[:9]
    model.load_state_dict({n: torch.from_numpy(w) for n, w in run.weights.items()}, strict=False)
    (found,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})
    with torch.no_grad():
        np.testing.assert_allclose(found, model(torch.from_numpy(x)), atol=1e-5)


@pytest.mark.matrix
@pytest.mark.parametrize("runtime", ["onnx", "executorch"])
def test_a_mask_is_among_the_features(tmp_path: Path, runtime: str) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    real = np.arange(9) < rng.integers(1, 10, 30)[:, None]
    data = (
        {"input_ids": rng.integers(1, 20, (30, 9)), "attention_mask": real.astype(np.int64)},
        rng.integers(0, 3, 30),
    )
    example = {name: array[:3] for name, array in data[0].items()}
    runs = []
    for cached in (False, True):
        torch.manual_seed(0)
        bundle = edge_fl.export(
            Texts(), example, train=["upper.*", "out.*"], cache_features=cached, runtimes=[runtime],
            widths=[1.0], batch=10, output=tmp_path / f"b{cached}",
        )  # fmt: skip
        runs.append(
            edge_fl.simulate(
                bundle,
                data,
                clients=2,
                fraction=1,
                rounds=2,
                local_steps=4,
                batch=10,
                runtime=runtime,
                test_data=data,
                output=tmp_path / f"run{cached}",
            )
        )
    assert bundle.manifest.features is not None
    assert bundle.manifest.features.shape[0] >= 9 * 16 + 9
    for name, expected in runs[0].weights.items():
        np.testing.assert_allclose(runs[1].weights[name], expected, atol=1e-5)


class Shortcut(nn.Module):
    """Its upper layer reads the pixels, too."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = nn.Linear(64, 8), nn.Linear(72, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.upper(torch.cat([self.lower(x.flatten(1)), x.flatten(1)], 1))  # type: ignore[no-any-return]


class Twice(nn.Module):
    """Its trained layer runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper, self.out = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.upper(self.upper(self.lower(x.flatten(1)))))  # type: ignore[no-any-return]


class Late(nn.Module):
    """A parameter of its own beside its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.shift = nn.Linear(64, 10), nn.Parameter(torch.ones(10))

    def forward(self, x: Tensor) -> Tensor:
        return self.lower(x.flatten(1)) + self.shift  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "train", "says"),
    [
        (pictures(), ["*"], "there are no features"),
        (Twice(), ["upper.*", "out.*"], "read more of the frozen ones than what 'upper' is given"),
        (Late(), ["shift"], "trains from its input on, so there are no features to keep"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused(
    tmp_path: Path, model: nn.Module, train: list[str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        edge_fl.export(model, EXAMPLE, train=train, cache_features=True, output=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_what_a_layer_reads_beside_features_is_a_feature(tmp_path: Path) -> None:
    bundle = edge_fl.export(Shortcut(), EXAMPLE, train=["upper.*"], cache_features=True, output=tmp_path / "b")
    assert bundle.manifest.features == Input((72,), "float32")


def test_a_device_makes_features_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = exported(tmp_path / "b", cached=True)
    made: list[int] = []
    original = Runtime.features

    def counting(self: Runtime, x: Any) -> Any:
        made.append(len(x))
        return original(self, x)

    monkeypatch.setattr(OnnxRuntime, "features", counting)
    with EmbeddedBroker(port=0) as broker:
        device = edge_fl.Device(
            str(broker.address), "digits:0/4", id="d", state=tmp_path / "state", once=True, keep_model=True,
            in_process=True, test_share=0.25,
        )  # fmt: skip
        thread = threading.Thread(target=device.run, daemon=True)
        thread.start()
        run = edge_fl.serve(
            bundle, broker=str(broker.address), rounds=3, clients_per_round=1, min_clients=1, evaluate_on=1,
            output=tmp_path / "run",
        )  # fmt: skip
        thread.join(60)
        assert not thread.is_alive()
    assert len(made) == 2  # of training, and of what is held out
    assert sum(made) == len(load_dataset("digits").train.y) // 4 + 1
    assert run.metrics[-1].on_devices
    x = load_dataset("digits").test.x[:5]
    model = pictures().eval()
    model.load_state_dict({n: torch.from_numpy(w) for n, w in run.weights.items()}, strict=False)
    with torch.no_grad():
        np.testing.assert_allclose(device.predict(x), model(torch.from_numpy(x)), atol=1e-5)
    device.close()
