"""HetLoRA and FlexLoRA: ranks by tier, beside layers that stay whole, and what their rules make of a round."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import edge_fl
from edge_fl.cli.main import app
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.data.registry import load_dataset
from edge_fl.methods.base import Ask, Job, open_method
from edge_fl.training.evaluator import open_evaluator

METHODS = ("hetlora", "flexlora")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("tier", "rank"), [(0, 4), (1, 2), (2, 1), (7, 1)])
def test_a_tier_trains_the_first_ranks_and_every_unit(
    name: str, tier: int, rank: int, adapter_bundle: Bundle
) -> None:
    method, layout = open_method(name, {"widths": [1000, 500, 250]}), adapter_bundle.layout
    pattern = method.assign(Ask(layout, "a", tier, 1, 3))
    assert pattern is not None
    assert pattern.kept["5.lora_A"].tolist() == list(range(rank))
    assert method.counts(layout, tier) == pattern.counts == {"1": 12, "5.lora_A": rank}
    local = method.local(Job(layout, "a", 1, 3, {}, {}, pattern, tier))
    assert local.upload is pattern


@pytest.mark.parametrize("name", METHODS)
def test_an_update_holds_adapters_of_its_rank(name: str, adapter_bundle: Bundle, tmp_path: Path) -> None:
    """Of 12 * 64 + 12 numbers that all train, and 16 + 10 for each rank."""
    run = edge_fl.simulate(
        adapter_bundle, method=name, parameters={"widths": [1, 0.25]}, clients=4, tiers=2, fraction=1, rounds=1,
        local_steps=2, output=tmp_path / "run",
    )  # fmt: skip
    sizes = sorted(run.metrics[-1].uplink.values())
    assert len(sizes) == 4
    assert sizes[-1] - sizes[0] == pytest.approx(3 * 26 * 4, abs=4)
    assert 4 * (780 + 104) <= sizes[-1] < 4 * (780 + 104) + 400


@pytest.mark.parametrize("widths", [[], [0], [1001]])
@pytest.mark.parametrize("name", METHODS)
def test_a_share_of_a_rank_out_of_range_is_refused(name: str, widths: list[int]) -> None:
    with pytest.raises(ConfigError, match="shares of a rank must be in"):
        open_method(name, {"widths": widths})


@pytest.mark.parametrize("name", METHODS)
def test_a_bundle_without_adapters_is_refused(name: str, small_bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'digits' has none: export with --train lora:LAYERS:r=16"):
        edge_fl.simulate(small_bundle, method=name, clients=4, rounds=1, output=tmp_path / "run")


def test_ranks_of_a_flexlora_run_are_sorted_by_what_they_do(adapter_bundle: Bundle, tmp_path: Path) -> None:
    run = edge_fl.simulate(
        adapter_bundle,
        method=edge_fl.FlexLoRA(widths=(1, 0.5)),
        clients=4,
        tiers=2,
        fraction=1,
        rounds=2,
        local_steps=4,
        output=tmp_path / "run",
    )
    down, up = (run.weights[f"5.lora_{part}.weight"] for part in "AB")
    np.testing.assert_allclose(down @ down.T, np.eye(4), atol=1e-5)
    sizes = np.linalg.norm(up, axis=0)
    assert (np.diff(sizes) <= 0).all()
    assert sizes[-1] > 0


def test_a_width_of_a_run_is_one_of_its_ranks(adapter_bundle: Bundle, tmp_path: Path) -> None:
    """What tier 1 trained: half of the ranks, and all units of the layer that trains beside them."""
    run = edge_fl.simulate(
        adapter_bundle,
        method=edge_fl.HetLoRA(widths=(1, 0.5)),
        clients=4,
        tiers=2,
        fraction=1,
        rounds=3,
        local_steps=8,
        output=tmp_path / "run",
    )
    words = [str(tmp_path / "run"), "--width", "0.5", "--runtime", "torch"]
    done = CliRunner().invoke(app, ["extract", *words, "-o", str(tmp_path / "half.pt2"), "--json"])
    assert done.exit_code == 0, done.output
    card = json.loads(done.stdout)
    assert card["units"] == {"1": 12, "5.lora_A": 2}
    cut = {name: array.copy() for name, array in run.weights.items()}
    cut["5.lora_B.weight"][:, 2:] = 0
    scored = open_evaluator(adapter_bundle, run.config, samples=load_dataset("digits").test, threads=1).score(cut)
    assert scored is not None
    assert card["scores"] == pytest.approx(scored.scores)

    words = [str(tmp_path / "run"), "--width", "0.5", "--adapter", "-o", str(tmp_path / "adapter"), "--json"]
    done = CliRunner().invoke(app, ["extract", *words])
    assert done.exit_code == 0, done.output
    config = json.loads(done.stdout)
    assert (config["r"], config["modules_to_save"]) == (2, ["1"])


def test_tiers_that_nobody_is_of_are_told(
    adapter_bundle: Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for tiers in (2, 1):
        caplog.clear()
        edge_fl.simulate(
            adapter_bundle, method=edge_fl.FlexLoRA(widths=(1, 0.5)), clients=2, tiers=tiers, rounds=1, local_steps=1,
            output=tmp_path / str(tiers),
        )  # fmt: skip
        assert ("'flexlora' tells 2 tiers apart, and there are clients of 1" in caplog.text) == (tiers == 1)


class Named(nn.Module):
    """A bottleneck of the reader's own, with names of an adapter: no product of theirs is what it adds."""

    def __init__(self) -> None:
        super().__init__()
        self.lora_A, self.lora_B, self.out = nn.Linear(64, 4, bias=False), nn.Linear(4, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.lora_B(self.lora_A(x.flatten(1)).relu()).relu())
        return outputs


def test_tensors_with_the_names_of_an_adapter_are_none(tmp_path: Path) -> None:
    bundle = edge_fl.export(Named(), torch.zeros(2, 1, 8, 8), output=tmp_path / "bundle")
    for name in METHODS:
        assert "has none" in (open_method(name, {}).unfit(bundle.manifest) or "")  # type: ignore[attr-defined]
