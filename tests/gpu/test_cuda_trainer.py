"""Clients that train on CUDA against the runtime that devices have, client by client."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from device_sim.simulation.settings import TrainerSettings
from edge_fl.core.bundle import Bundle
from edge_fl.core.inputs import Input
from edge_fl.methods.base import method_names
from exporter.export import Target, export_bundle
from tests.device_sim.stacked_steps import (
    MODELS,
    PARAMETERS,
    RUNTIME,
    assert_close,
    step_bundle,
    step_settings,
    trained,
)

pytestmark = pytest.mark.gpu

CUDA = TrainerSettings("stacked", device="cuda")


@pytest.mark.parametrize("method", method_names())
def test_a_round_of_every_method_is_that_of_the_runtime(
    torch_bundle: Bundle, adapter_bundle: Bundle, tmp_path: Path, method: str
) -> None:
    settings = {"method": method, "parameters": PARAMETERS.get(method, {})}
    bundle = adapter_bundle if method in ("hetlora", "flexlora") else torch_bundle
    expected = trained(bundle, tmp_path / "runtime", RUNTIME, **settings)
    assert_close(expected, trained(bundle, tmp_path / "cuda", CUDA, **settings))
    assert any(np.abs(expected[name] - array).max() > 1e-3 for name, array in bundle.weights().items())


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_step_is_that_of_the_runtime(tmp_path: Path, name: str) -> None:
    bundle, settings = step_bundle(name, tmp_path / "bundle"), step_settings(name)
    expected = trained(bundle, tmp_path / "runtime", RUNTIME, **settings)
    assert_close(expected, trained(bundle, tmp_path / "cuda", CUDA, **settings))
    assert any(np.abs(expected[key] - array).max() > 1e-3 for key, array in bundle.weights().items())


class Attending(nn.Module):
    """A picture's rows, which look at each other, with dropout of the model's own; heads stay whole."""

    edge_fl_dense = ("layer.self_attn", "layer.linear1")  # torch 2.11 exports no attention of any number of heads

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        self.out = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.into(x.flatten(1, 2))).mean(1))


def test_a_transformer_with_dropout_is_that_of_the_runtime(tmp_path: Path) -> None:
    torch.manual_seed(0)
    target = Target("attending", "digits", Input((1, 8, 8), "float32"), 10, ("onnx", "torch_eager"))
    bundle = export_bundle(Attending(), target, tmp_path / "bundle")
    expected = trained(bundle, tmp_path / "runtime", RUNTIME)
    assert_close(expected, trained(bundle, tmp_path / "cuda", CUDA))


@pytest.mark.parametrize("name", ["sgd-conv", "per-width-conv", "sgd-recurrent"])
def test_the_same_run_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    bundle, settings = step_bundle(name, tmp_path / "bundle"), step_settings(name) | {"rounds": 2}
    one, other = (trained(bundle, tmp_path / f"run-{i}", CUDA, **settings) for i in range(2))
    assert all(one[key].tobytes() == other[key].tobytes() for key in one)
