"""`bench fine-tuning` on the digits: every way makes an update of what it trains alone, and is made once."""

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from benchmarks import fine_tuning, pretrained
from benchmarks.fine_tuning import FineTuningChoice, Keeping, Way, bench_fine_tuning
from benchmarks.pretrained import TASKS
from edge_fl.core.errors import ConfigError
from edge_fl.data.registry import Dataset, Samples, load_dataset
from exporter.zoo.mlp import mlp


class Digits(pretrained.PretrainedTask):
    """Pretrained on the test split, tuned by three owners of the other."""

    def build(self) -> nn.Module:
        return mlp(inputs=64, hidden=8, classes=10)

    def pretraining(self) -> Samples:
        return load_dataset("digits").test

    def devices(self) -> Dataset:
        found = load_dataset("digits")
        owner = np.arange(len(found.train.y)) % 3
        return Dataset(found.info, Samples(found.train.x, found.train.y, owner), found.test)


WAYS = (Way("all"), Way("head"), Way("adapters", 4, "flexlora", (("widths", (1.0, 0.5)),), tiers=2))


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    lr = {"all": 0.1, "head": 0.1, "adapters": 0.1}
    layers = {name: type(module).__name__ for name, module in mlp(inputs=64, hidden=8, classes=10).named_modules()}
    linear = [name for name, kind in layers.items() if kind == "Linear"]
    digits = Digits("digits", "Digits.", 3, 30, 1e-2, f"{linear[-1]}.*", ",".join(linear[:2]), lr)
    monkeypatch.setattr(fine_tuning, "TASKS", {"digits": digits})
    monkeypatch.setattr(fine_tuning, "WAYS", WAYS)


@pytest.mark.matrix
@pytest.mark.usefixtures("task")
def test_each_way_trains_and_sends_its_part(tmp_path: Path) -> None:
    choice, told = FineTuningChoice(["digits"], [0, 1], rounds=2, clients=3), list[str]()
    keeping = Keeping(tmp_path / "results.json", tmp_path / "cache", told.append)
    result = bench_fine_tuning(choice, keeping)
    numbers = {row["trained"]: row["numbers"] for row in result.rows}
    assert numbers == {"all": 64 * 8 + 8 + 72 + 90, "head": 90, "LoRA, r = 4": 4 * (64 + 8) + 4 * (8 + 8)}
    sizes = {row["trained"]: 1000 * float(row["update (kB)"]) for row in result.rows}
    assert 4 * 90 < sizes["head"] < 4 * 90 + 400
    two_of_three = (2 * 352 + 176) / 3  # clients of tiers 0, 1, 0
    assert 4 * two_of_three < sizes["LoRA, r = 4"] < 4 * two_of_three + 400
    assert [row["seeds"] for row in result.rows] == [2, 2, 2]
    searched = {text.split(": ")[0] for text in told if "seed 100" in text}
    assert {"digits, head, fedavg, lr 0.1, seed 100", "digits, head, fedavg, lr 0.033, seed 100"} <= searched
    assert {row["lr"] for row in result.rows} <= {0.1, 0.1 / 3}

    told.clear()
    assert bench_fine_tuning(choice, keeping).rows == result.rows
    assert told == []
    result.write(tmp_path / "page.md")
    assert (tmp_path / "page-digits.png").stat().st_size > 10_000


def test_a_result_counts_for_all_parameters_that_are_in_effect() -> None:
    def key(**parameters: object) -> str:
        way = Way("adapters", 4, "fedbiad", tuple(parameters.items()))
        return fine_tuning._Case(TASKS["femnist"], way, 0.1, 0, rounds=2, clients=3).key

    assert key(dropout=0.5) == key(dropout=0.5, tau_in="passes")
    assert len({key(dropout=0.5), key(dropout=0.5, tau_in="steps"), key(dropout=0.25)}) == 3


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="no task 'cifar'; there are femnist, shakespeare"):
        FineTuningChoice(["cifar"], [0], rounds=1, clients=1)


@pytest.mark.usefixtures("task")
def test_a_run_that_diverges_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fine_tuning, "WAYS", WAYS[:1])
    monkeypatch.setitem(fine_tuning.TASKS["digits"].lr, "all", 1e6)
    keeping = Keeping(tmp_path / "results.json", tmp_path / "cache", lambda _: None)
    (row,) = bench_fine_tuning(FineTuningChoice(["digits"], [0], rounds=2, clients=3), keeping).rows
    assert (row["after (%)"], row["seeds"]) == ("diverged", 0)
