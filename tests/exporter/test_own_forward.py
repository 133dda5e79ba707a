"""Layers that extend torch's: what they compute beside it is not lost."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import edge_fl
from edge_fl.core.errors import UnsupportedModelError
from edge_fl.core.inputs import Input
from exporter.accept import Fit, accept
from exporter.adapt import adapt

X = torch.randn(4, 3, 6, 6)


class NormAct(nn.BatchNorm2d):
    """BatchNorm with an activation behind it, as timm has it."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))  # type: ignore[no-any-return]


class GroupAct(nn.GroupNorm):
    """The same of groups."""

    def __init__(self, channels: int) -> None:
        super().__init__(2, channels)
        self.drop, self.act = nn.Identity(), nn.Hardtanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))  # type: ignore[no-any-return]


class Same(nn.Conv2d):
    """A depthwise convolution that pads by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.pad(x, (1, 1, 1, 1)))


class Halved(nn.BatchNorm2d):
    """One that nobody knows."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


class Renamed(nn.BatchNorm2d):
    """Another name for torch's."""


@pytest.mark.parametrize("layer", [NormAct(6), GroupAct(6), Same(6, 6, 3, groups=6), Renamed(6)])
@pytest.mark.parametrize("training", [True, False])
def test_an_adapted_layer_computes_the_same(layer: nn.Module, training: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), layer, nn.Flatten(), nn.LazyLinear(2)).train(training)
    expected = model(X)
    assert list(adapt(model).state_dict().keys() - model.state_dict().keys()) == []
    torch.testing.assert_close(adapt(model)(X), expected)


def test_a_batch_norm_of_another_forward_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), Halved(6), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(
        UnsupportedModelError, match="'1' is a Halved, whose forward is not that of torch's BatchNorm"
    ):
        accept(model, Fit(Input((3, 6, 6), "float32"), (6,), 6))


class Ghost(nn.Module):
    """GhostNet's: a slice of a concatenation is added to in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.cheap = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm, self.shortcut, self.out = NormAct(6), nn.Conv2d(3, 9, 1), nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        few = self.norm(self.first(x))
        both = torch.cat([few, self.cheap(few)], 1)[:, :9]
        both += self.shortcut(x)
        outputs: Tensor = self.out(both.mean((2, 3)))
        return outputs


@pytest.mark.parametrize("runtime", ["onnx", pytest.param("executorch", marks=pytest.mark.matrix)])
def test_what_is_added_in_place_to_a_slice_trains(runtime: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    more: dict[str, Any] = {"runtimes": [runtime], "widths": [1.0], "output": tmp_path / "b"}
    found = edge_fl.export(Ghost(), torch.zeros(1, 3, 6, 6), **more)
    assert found.manifest.parity[runtime].weights < 2e-5
