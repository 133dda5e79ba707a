import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import simulator
from benchmarks.flower import FlowerWork, fly
from benchmarks.simulator import SimulatorSetting, bench_simulator
from edge_fl.core.errors import RuntimeMissingError
from edge_fl.data.partition import IID, partition
from edge_fl.data.registry import load_dataset

FLOWER = os.environ.get("EDGE_FL_FLOWER_PYTHON")


def test_the_loop_and_both_trainers_are_compared_over_the_same_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_WORK", (("digits-mlp", "fedavg", 0.8),))
    setting = SimulatorSetting(population=20, clients=3, steps=2, rounds=2, threads=1)
    told: list[str] = []

    result = bench_simulator(setting, told.append)

    rows = json.loads(result.json())["rows"]
    assert [row["trainer"] for row in rows] == ["sequential torch loop", "stacked", "runtime (onnx)"]
    assert rows[0]["/ loop"] == 1
    assert all(row["seconds a round"] > 0 for row in rows)
    assert 0 < rows[1]["weights - loop's"] <= 1e-5
    assert rows[1]["goals"].startswith("/ loop ≤ 0.8: ")
    assert told == ["digits-mlp, fedavg: exporting", "digits-mlp, fedavg: 2 rounds"]
    assert "--population 20 --clients 3" in result.markdown()


def flower_work() -> FlowerWork:
    samples = load_dataset("digits").train
    return FlowerWork(
        model=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
        samples=samples,
        parts=partition(samples, 6, IID),
        clients=2,
        steps=3,
        batch=4,
        lr=0.1,
        rounds=2,
        at_once=1,
    )


@pytest.mark.skipif(FLOWER is None, reason="EDGE_FL_FLOWER_PYTHON names no Python with Flower")
def test_flower_simulates_the_same_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    work, python = flower_work(), Path(str(FLOWER))
    found = fly(work, python)
    assert len(found.seconds) == 2
    assert all(0 < seconds < 300 for seconds in found.seconds)
    assert 1e-3 < found.moved < 1
    assert fly(replace(work, lr=0.0), python).moved < 1e-6

    monkeypatch.setattr(simulator, "_WORK", (("digits-mlp", "fedavg", 0.8),))
    result = bench_simulator(SimulatorSetting(population=20, clients=3, steps=2, rounds=2, threads=1), str, python)
    flower, ours = result.rows[-2:]
    assert str(flower["trainer"]).startswith(f"Flower {found.version}, ")
    assert float(flower["wall (s)"]) > float(ours["wall (s)"]) > 0
    assert str(ours["goals"]).startswith("wall / Flower's ≤ 0.25: yes")
    assert "Flower's simulation is its FedAvg" in result.about
    assert result.markdown()


def test_a_python_without_flower_is_refused_in_a_sentence(tmp_path: Path) -> None:
    setting = SimulatorSetting(population=20, clients=3, steps=2, rounds=2, threads=1)
    with pytest.raises(RuntimeMissingError, match="cannot be run"):
        bench_simulator(setting, str, tmp_path / "python")
    with pytest.raises(RuntimeMissingError, match=r"has no Flower \(.*No module named 'flwr'\).*pip install"):
        bench_simulator(setting, str, Path(sys.executable))
