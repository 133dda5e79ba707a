"""Where a step multiplies: a norm would take the factor out again."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edge_fl
from exporter.derive import derive
from exporter.scaled import scaled_parameters

X = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def head(channels: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 4)


class PreActivation(nn.Module):
    """The stream of a residual network, normalised wherever it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.before = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.inner, self.between = nn.Conv2d(8, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.back, self.behind, self.out = nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.back(torch.relu(self.between(self.inner(torch.relu(self.before(x))))))
        outputs: Tensor = self.out(torch.relu(self.behind(x)).mean((2, 3)))
        return outputs


class PostActivation(nn.Module):
    """A block of torchvision's ResNet, which writes into the outputs of its norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.back, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.relu, self.out = nn.ReLU(inplace=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(self.stem(x)))
        y = self.second(self.back(x))
        y += x
        outputs: Tensor = self.out(self.relu(y).mean((2, 3)))
        return outputs


class OneNormalised(nn.Module):
    """Two layers with the same units, of which one has a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.norm, self.right = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(3, 8, 1)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(torch.relu(self.norm(self.left(x)) + self.right(x)).mean((2, 3)))
        return outputs


class Twice(nn.Module):
    """A layer that is read with its norm and without."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)
        self.left, self.right = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        normal = torch.relu(self.norm(x)).mean((2, 3))
        outputs: Tensor = self.left(normal) + self.right(torch.relu(x).mean((2, 3)))
        return outputs


class BesideDense(nn.Module):
    """One norm over units and the channels of a layer that stays dense."""

    edge_fl_dense = ("dense",)

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dense = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 4, 1)
        self.norm, self.out = nn.BatchNorm2d(12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.cat([self.layer(x), self.dense(x)], 1))
        outputs: Tensor = self.out(torch.relu(x).mean((2, 3)))
        return outputs


class NormAct(nn.BatchNorm2d):
    """A norm with an activation behind it, as timm has it."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.act(self.drop(super().forward(x)))
        return outputs


CASES: dict[str, tuple[nn.Module, tuple[str, ...]]] = {
    "batch norm": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), *head(8)), ("1",)),
    "pooled first": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(8), *head(8)),
        ("3",),
    ),
    "group norm": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), *head(8)), ("1",)),
    "depthwise behind": (
        nn.Sequential(
            *(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU6()),
            *(nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), nn.ReLU6()),
            *head(8),
        ),
        ("4",),
    ),
    "depthwise without": (
        nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), *head(8)),
        ("1",),
    ),
    "with an activation": (nn.Sequential(nn.Conv2d(3, 8, 3), NormAct(8), *head(8)), ("1.drop",)),
    "stream normalised where it is read": (PreActivation(), ("before", "between", "behind")),
    "stream of normalised layers": (PostActivation(), ("first", "second")),
    "one of two": (OneNormalised(), ("norm", "right")),
    "read twice": (Twice(), ("layer", "norm")),
    "beside a dense layer": (BesideDense(), ("layer",)),
    "no norm": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), *head(8)), ("0",)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_scale_goes_behind_the_last_norm_before_a_reader(name: str) -> None:
    model, expected = CASES[name]
    found = derive(model, X)

    assert found.scaled == expected
    layers = [place.removesuffix(".drop") for place in expected]
    parameters = {f"{layer}.{what}" for layer in layers for what in ("weight", "bias")}
    assert set(scaled_parameters(model, found.layout, found.scaled)) == parameters


def test_the_full_model_predicts_numbers_as_large_as_those_that_dropping_trained(tmp_path: Path) -> None:
    """With the factor before BatchNorm, the mean of the predictions was 1.7 times that of the targets."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((240, 6)).astype(np.float32)
    np.savez(tmp_path / "all.npz", x=x, y=(5 + x[:, :1]).astype(np.float32))
    torch.manual_seed(0)
    layers = (nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU())
    model = nn.Sequential(*layers, nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
    bundle = edge_fl.export(
        model, torch.randn(3, 6), output=tmp_path / "bundle", runtimes=["onnx"], loss="mse", batch=16
    )

    run = edge_fl.simulate(
        bundle,
        f"npz:{tmp_path / 'all.npz'}",
        test_data=f"npz:{tmp_path / 'all.npz'}",
        method="feddrop",
        clients=4,
        fraction=1.0,
        rounds=25,
        lr=0.02,
        local_steps=4,
        batch=16,
        scores=["rmse"],
        seed=0,
        output=tmp_path / "run",
    )

    assert run.scores["rmse"] < 1.5
