"""Convolutions that the stacked trainer writes as products, against torch's own."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from device_sim.simulation import small_convolutions, stacked, stacked_program
from device_sim.simulation.settings import TrainerSettings
from device_sim.simulation.small_convolutions import unfoldings, write_as_products
from device_sim.simulation.stacked import StackedTrainer
from edge_fl.core.bundle import TENSOR, Bundle
from edge_fl.core.inputs import Input
from edge_fl.runtimes.torch_eager import open_graph
from exporter.export import Target, export_bundle
from tests.device_sim.stacked_steps import assert_close, trained

RUNTIME = TrainerSettings("runtime", "torch_eager")


def strided() -> nn.Module:
    """The second convolution's windows leave a row and a column of its inputs out."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=(1, 0), bias=False), nn.ReLU()),
        *(nn.Conv2d(4, 6, (2, 3), stride=(3, 2), padding=(0, 1)), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6, 10)),
    )


def overlapping() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.MaxPool2d(3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(4, 6, 2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 10)),
    )


def along_rows() -> nn.Module:
    """The second convolution's windows have one row, and leave every other row of its inputs out."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, (1, 3), stride=(2, 1), padding=(1, 0)), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(96, 10)),
    )


def without_between() -> nn.Module:
    """A convolution of a convolution's outputs: the gradient between them is a part of what has borders."""
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)),
    )


def without_between_strided() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(36, 10)),
    )


class Shared(nn.Module):
    """One convolution twice, one of its inputs a sum; windows reach past the border."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding="same")
        self.pool, self.out = nn.MaxPool2d(3, 2, ceil_mode=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        y = self.shared(y + self.shared(y).relu()).relu()
        return self.out(self.pool(y).flatten(1))


class Paddings(nn.Module):
    """One weight that slides along images with two borders, and a pooling of one image a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(4, 1, 3, 3) / 3), nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        down = nn.functional.conv2d(x, self.weight, padding=(1, 0)).relu()
        along = nn.functional.conv2d(x, self.weight, padding=(0, 1)).relu()
        pooled = nn.functional.max_pool2d((down + along.transpose(2, 3)).mean(1), 3, 1, 1)
        return self.out(torch.cat([pooled.flatten(1), down[:, :3].flatten(1)], 1))


def bundle_of(model: nn.Module, root: Path, **more: object) -> Bundle:
    torch.manual_seed(0)
    target = Target("conv", "digits", Input((1, 8, 8), "float32"), 10, ("torch_eager",), batch=20, **more)
    return export_bundle(model, target, root)


def graph_of(bundle: Bundle) -> tuple[torch.fx.Graph, Sequence[str]]:
    """Of its step, and the names of its inputs."""
    program = bundle.manifest.step_program("torch_eager", "plain", bundle.layout.sizes, None)
    assert program is not None
    return open_graph(bundle, program, torch.device("cpu")).graph, program.inputs


OTHERS = (overlapping, along_rows, without_between_strided)


@pytest.mark.parametrize(
    "model", [strided, without_between, *(pytest.param(model, marks=pytest.mark.matrix) for model in OTHERS)]
)
def test_products_train_what_convolutions_do(
    model: type[nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of(model(), tmp_path / "bundle")
    settings = {"method": "fedbiad", "parameters": {"dropout": [400]}}
    expected = trained(bundle, tmp_path / "runtime", RUNTIME, **settings)
    assert any(np.abs(expected[key] - array).max() > 1e-3 for key, array in bundle.weights().items())

    slices: list[int] = []
    of_slice = StackedTrainer._slice
    monkeypatch.setattr(StackedTrainer, "_slice", lambda *of: slices.append(of_slice(*of)) or slices[-1])
    assert_close(expected, trained(bundle, tmp_path / "stacked", TrainerSettings("stacked"), **settings))
    assert set(slices) == {stacked._MOST_OF_IMAGES}

    shapes = {f"{TENSOR}{tensor.name}": tensor.shape for tensor in bundle.layout.tensors}
    largest, *_ = sorted(each.size(shapes, 20) for each in unfoldings(*graph_of(bundle)))
    for module in (small_convolutions, stacked_program):
        monkeypatch.setattr(module, "SMALL", largest)  # the other convolution stays one
    slices.clear()
    assert_close(expected, trained(bundle, tmp_path / "mixed", TrainerSettings("stacked"), **settings))
    assert set(slices) == {1}


def anew() -> nn.Module:
    blocks = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
    return nn.Sequential(blocks, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))


@pytest.mark.parametrize(
    ("model", "more"),
    [
        (Shared, {}),
        pytest.param(Paddings, {}, marks=pytest.mark.matrix),
        pytest.param(anew, {"checkpoint": ("0",)}, marks=pytest.mark.matrix),
        (anew, {"micro_batch": 5}),
    ],
    ids=["shared", "paddings", "checkpoint", "micro-batches"],
)
def test_convolutions_with_several_inputs_and_those_computed_anew(
    model: type[nn.Module], more: dict[str, object], tmp_path: Path
) -> None:
    bundle = bundle_of(model(), tmp_path / "bundle", **more)
    expected = trained(bundle, tmp_path / "runtime", RUNTIME)
    assert_close(expected, trained(bundle, tmp_path / "stacked", TrainerSettings("stacked")))


def test_what_a_convolution_unfolds_to(tmp_path: Path) -> None:
    bundle = bundle_of(strided(), tmp_path / "bundle")
    first, second = unfoldings(*graph_of(bundle))
    assert (first.places, second.places) == (8 * 6, 3 * 3)
    assert first.size({f"{TENSOR}0.weight": (4, 1, 3, 3)}, 20) == 20 * 8 * 6 * 9
    assert first.size({}, 20) == float("inf")
    assert second.weight == f"{TENSOR}2.weight"


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 4, 3, padding="valid"), nn.Flatten(), nn.Linear(144, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 3, dilation=2), nn.Flatten(), nn.Linear(64, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(64, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)),
        nn.Sequential(nn.Flatten(2), nn.Conv1d(1, 4, 3), nn.Flatten(), nn.Linear(248, 10)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    ],
    ids=["valid", "dilated", "grouped", "normalised", "series", "perceptron"],
)
def test_other_steps_are_left_as_they_are(model: nn.Module, tmp_path: Path) -> None:
    graph, _ = graph_of(bundle_of(model, tmp_path / "bundle"))
    before = [node.target for node in graph.nodes]
    assert not write_as_products(graph)
    assert [node.target for node in graph.nodes] == before
