"""A model of one number a sample, with an axis for that number or without."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edge_fl
from edge_fl.core.errors import ConfigError, DataError
from edge_fl.core.inputs import Input


class Squeezed(nn.Module):
    """Gives [B], as many tutorials of regression do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x).squeeze(-1)
        return outputs


LOSSES = {"name": "mse", "torch's": nn.MSELoss(reduction="none"), "own": lambda outputs, y: (outputs - y).abs()}


def table(folder: Path, y: str, name: str = "data.npz") -> str:
    x = np.random.default_rng(0).standard_normal((80, 4)).astype(np.float32)
    targets = {
        "numbers": x.sum(1),
        "with an axis": x.sum(1, keepdims=True),
        "whole": np.rint(4 + x.sum(1)).clip(0).astype(np.int64),
        "two classes": (x.sum(1) > 0).astype(np.int64),
    }
    np.savez(folder / name, x=x, y=targets[y])
    return f"npz:{folder / name}"


TARGETS = ("numbers", "with an axis", "whole")


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        pytest.param(loss, y, marks=() if place == own else pytest.mark.matrix)
        for place, loss in enumerate(LOSSES)
        for own, y in enumerate(TARGETS)
    ],
)
def test_targets_with_an_axis_or_without_train_the_same(loss: str, y: str, tmp_path: Path) -> None:
    def run(name: str, data: str) -> dict[str, np.ndarray]:
        torch.manual_seed(0)
        model = Squeezed() if name == "squeezed" else Squeezed().layers
        bundle = edge_fl.export(
            model,
            torch.randn(3, 4),
            loss=LOSSES[loss],
            target="float32",
            runtimes=["onnx"],
            output=tmp_path / name,
        )
        assert bundle.manifest.target == Input((1,), "float32")
        run = edge_fl.simulate(
            bundle, data, test_data=data, clients=4, rounds=3, lr=0.1, seed=0, output=tmp_path / f"run-{name}"
        )
        assert set(run.scores) == {"mae", "rmse"}
        return {key.removeprefix("layers."): array for key, array in run.weights.items()}

    given = table(tmp_path, y)
    squeezed, whole = run("squeezed", given), run("whole", given)
    for key, array in whole.items():
        np.testing.assert_allclose(squeezed[key], array, atol=1e-5)


def test_two_classes_are_0_and_1(tmp_path: Path) -> None:
    bundle = edge_fl.export(
        Squeezed(), torch.randn(3, 4), loss="binary_cross_entropy", runtimes=["onnx"], output=tmp_path / "bundle"
    )
    data = table(tmp_path, "two classes")
    run = edge_fl.simulate(
        bundle, data, test_data=data, clients=4, rounds=8, lr=0.5, seed=0, output=tmp_path / "run"
    )
    assert run.scores["binary-accuracy"] > 0.85


def test_several_numbers_need_their_axis(tmp_path: Path) -> None:
    bundle = edge_fl.export(
        nn.Linear(4, 2), torch.randn(3, 4), loss="mse", runtimes=["onnx"], output=tmp_path / "bundle"
    )
    with pytest.raises(DataError, match="targets of shape"):
        edge_fl.simulate(bundle, table(tmp_path, "numbers"), clients=2, rounds=1, output=tmp_path / "run")


class SqueezedWhole(Squeezed):
    """Gives [B], and of one sample no axis at all."""

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x).squeeze()
        return outputs


def test_a_model_may_squeeze_whatever_axes_there_are(tmp_path: Path) -> None:
    bundle = edge_fl.export(
        SqueezedWhole(), torch.randn(3, 4), loss="mse", runtimes=["onnx"], output=tmp_path / "bundle"
    )
    assert bundle.manifest.target == Input((1,), "float32")


def test_one_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="take binary_cross_entropy"):
        edge_fl.export(Squeezed(), torch.randn(3, 4), runtimes=["onnx"], output=tmp_path / "bundle")


def test_shares_are_from_0_to_1(tmp_path: Path) -> None:
    bundle = edge_fl.export(
        Squeezed(), torch.randn(3, 4), loss="binary_cross_entropy", runtimes=["onnx"], output=tmp_path / "bundle"
    )
    with pytest.raises(DataError, match="takes shares from 0 to 1"):
        edge_fl.simulate(bundle, table(tmp_path, "numbers"), clients=2, rounds=1, output=tmp_path / "run")


class Branch(nn.Module):
    """A residual block with BatchNorm behind each convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(inner)) + self.norms[2](self.short(x)))


@pytest.mark.matrix
def test_a_residual_network_whose_loss_grows_on_made_up_samples_is_proven_in_smaller_steps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    stem = (nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    blocks = (Branch(8, 8, 1), Branch(8, 16, 2))
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 1))
    bundle = edge_fl.export(
        model, torch.randn(2, 3, 16, 16), loss="mse", runtimes=["onnx"], output=tmp_path / "bundle"
    )
    assert bundle.manifest.parity["onnx"].weights < 1e-4
