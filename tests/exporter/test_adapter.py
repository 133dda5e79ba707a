"""Adapters of a run, as PEFT keeps them, compute what the run's model computes, at every rank."""

import json
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.nn import functional

import edge_fl
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, RunError
from exporter.extract.adapter import extract_adapter
from exporter.extract.extract import Trained, Wanted, extract


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        ("first", nn.Linear(5, 12)),
        ("act", nn.Tanh()),
        ("second", nn.Linear(12, 8)),
        ("head", nn.Linear(8, 3)),
    ]
    return nn.Sequential(OrderedDict(layers))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    train = ["lora:first:r=4:alpha=6", "lora:second:r=2", "head.*"]
    return edge_fl.export(model(), torch.zeros(2, 5), train=train, output=tmp_path_factory.mktemp("lora") / "b")


@pytest.fixture(scope="module")
def trained(bundle: Bundle) -> Trained:
    rng = np.random.default_rng(1)
    weights = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in bundle.layout.tensors}
    return Trained(weights, run="r", method="fjord", round=3)


@pytest.mark.parametrize(
    ("width", "ranks", "factor"),
    [
        (1000, {"first": 4, "second": 2}, 1.0),
        (500, {"first": 2, "second": 1}, 1.0),
        (500, {"first": 2, "second": 1}, 2.0),
    ],
)
def test_an_adapter_computes_what_the_run_trained(
    bundle: Bundle, trained: Trained, tmp_path: Path, *, width: int, ranks: dict[str, int], factor: float
) -> None:
    """With the factor of a level of HeteroFL, too, which multiplies what the ranks hold."""
    trained = replace(trained, factor=factor)
    extract_adapter(bundle, trained, Wanted("torch_eager", width), tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    held = load_file(tmp_path / "adapter" / "adapter_model.safetensors")

    assert (config["r"], config["lora_alpha"]) == (ranks["first"], 1.5 * ranks["first"])
    assert config["rank_pattern"] == {"^second": ranks["second"]}
    assert config["alpha_pattern"] == {"^second": 2 * ranks["second"]}
    assert (config["target_modules"], config["modules_to_save"]) == ("first|second", ["head"])

    x = torch.randn(7, 5)
    ours = model()
    for layer, alpha in (("first", config["lora_alpha"]), ("second", config["alpha_pattern"]["^second"])):
        down, up = (torch.from_numpy(held[f"base_model.model.{layer}.lora_{part}.weight"]) for part in "AB")
        assert len(down) == up.shape[1] == ranks[layer]
        expected = factor * trained.weights[f"{layer}.lora_A.weight"][: ranks[layer]]
        np.testing.assert_allclose(down.numpy(), expected, rtol=1e-6)
        ours.get_submodule(layer).weight.data += alpha / ranks[layer] * up @ down  # type: ignore[union-attr,operator]
    head = (torch.from_numpy(held[f"base_model.model.head.{part}"]) for part in ("weight", "bias"))
    hidden = ours.get_submodule("second")(torch.tanh(ours.get_submodule("first")(x)))
    path, _ = extract(bundle, trained, Wanted("torch", width), tmp_path / "whole")
    wanted = torch.export.load(path).module()(x)
    assert functional.linear(hidden, *head).detach().numpy() == pytest.approx(wanted.detach().numpy(), abs=1e-4)


class Positioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(6))
        self.inner, self.hidden, self.out = nn.Linear(4, 6), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out((self.hidden(self.inner(x) + self.position)).relu())
        return outputs


@pytest.mark.parametrize(
    ("train", "width", "sentence"),
    [
        (["lora:inner:r=2", "position"], 1000, "no place for 'position'"),
        (["lora:inner:r=2", "hidden.*", "out.*"], 500, r"Width 0.5 also cuts 'hidden\.weight'"),
    ],
)
def test_what_peft_cannot_hold_is_refused(train: list[str], width: int, sentence: str, tmp_path: Path) -> None:
    bundle = edge_fl.export(Positioned(), torch.zeros(2, 4), train=train, output=tmp_path / "bundle")
    trained = Trained(bundle.weights(), run="r", method="fjord", round=1)
    with pytest.raises(ConfigError, match=sentence):
        extract_adapter(bundle, trained, Wanted("torch", width), tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


def test_a_manifest_names_adapters_that_it_has(bundle: Bundle) -> None:
    for adapters in ({"nowhere": 1.0}, {"first": 0.0}):
        with pytest.raises(ValueError, match="an adapter has two tensors of one rank, and a gain above 0"):
            msgspec.structs.replace(bundle.manifest, adapters=adapters)


def test_what_is_no_adapter_is_refused(
    bundle: Bundle, trained: Trained, digits_bundle: Bundle, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="'digits-mlp' has no adapters"):
        extract_adapter(digits_bundle, trained, Wanted("torch"), tmp_path / "adapter")
    with pytest.raises(RunError, match="not of this bundle's model"):
        extract_adapter(bundle, Trained({}, "r", "fedavg", 1), Wanted("torch"), tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
