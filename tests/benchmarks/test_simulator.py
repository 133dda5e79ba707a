import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import simulator
from benchmarks.peers.flower import simulate_in_flower
from benchmarks.peers.pfl_research import simulate_in_pfl
from benchmarks.peers.work import FedAvgWork
from benchmarks.perceptron_products import layers_of, products, seconds_on_all_cores
from benchmarks.simulator import Peers, SimulatorSetting, bench_simulator
from edge_fl.core.errors import RuntimeMissingError
from edge_fl.data.partition import IID, partition
from edge_fl.data.registry import load_dataset
from exporter.measure.eager import sized

FLOWER = os.environ.get("EDGE_FL_FLOWER_PYTHON")
PFL = os.environ.get("EDGE_FL_PFL_PYTHON")


@pytest.mark.matrix
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


def test_the_floor_has_every_product_of_a_step_and_no_other() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    layers = layers_of(model)
    assert layers == [(6, 4), (4, 3)]
    shapes = [
        (tuple(left.shape), tuple(right.shape), tuple(out.shape)) for left, right, out in products(layers, 5)
    ]
    first = [((5, 6), (6, 4), (5, 4)), ((4, 5), (5, 6), (4, 6))]
    assert shapes == [*first, ((5, 4), (4, 3), (5, 3)), ((3, 5), (5, 4), (3, 4)), ((5, 3), (3, 4), (5, 4))]
    assert seconds_on_all_cores(layers, batch=5, steps=4, rounds=2, processes=2) > 0


def test_the_floor_of_a_narrower_model_is_its_own() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    half = {
        "0.weight": np.zeros((2, 6)),
        "0.bias": np.zeros(2),
        "2.weight": np.zeros((3, 2)),
        "2.bias": np.zeros(3),
    }
    assert layers_of(sized(model, half)) == [(6, 2), (2, 3)]


def small_work() -> FedAvgWork:
    samples = load_dataset("digits").train
    return FedAvgWork(
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
    work, python = small_work(), Path(str(FLOWER))
    found = simulate_in_flower(work, python)
    assert len(found.seconds) == 2
    assert all(0 < seconds < 300 for seconds in found.seconds)
    assert 1e-3 < found.moved < 1
    assert simulate_in_flower(replace(work, lr=0.0), python).moved < 1e-6

    monkeypatch.setattr(simulator, "_WORK", (("digits-mlp", "fedavg", 0.8),))
    setting = SimulatorSetting(population=20, clients=3, steps=2, rounds=2, threads=1)
    result = bench_simulator(setting, str, Peers(flower=python))
    flower, fedavg, whole, fedbiad, half = result.rows[-5:]
    assert float(fedavg["wall (s)"]) > float(whole["wall (s)"]) > float(half["wall (s)"]) > 0
    assert str(flower["trainer"]).startswith(f"Flower {found.version}, ")
    assert float(flower["wall (s)"]) > float(fedavg["wall (s)"]) > 0
    assert str(fedavg["goals"]).startswith("wall / Flower's ≤ 0.2: yes")
    assert str(fedbiad["goals"]).startswith("wall / Flower's ≤ 0.12: ")
    assert "Peers simulate their own FedAvg" in result.about
    assert "--flower-python PYTHON" in result.markdown()


@pytest.mark.skipif(PFL is None, reason="EDGE_FL_PFL_PYTHON names no Python with pfl-research")
def test_pfl_research_simulates_the_same_clients() -> None:
    work, python = small_work(), Path(str(PFL))
    found = simulate_in_pfl(work, python)
    assert len(found.seconds) == 2
    assert 1e-3 < found.moved < 1
    assert simulate_in_pfl(replace(work, lr=1e-9), python).moved < 1e-6


def test_a_python_without_a_peer_is_refused_in_a_sentence(tmp_path: Path) -> None:
    setting = SimulatorSetting(population=20, clients=3, steps=2, rounds=2, threads=1)
    with pytest.raises(RuntimeMissingError, match="cannot be run"):
        bench_simulator(setting, str, Peers(flower=tmp_path / "python"))
    with pytest.raises(RuntimeMissingError, match=r"has no Flower \(.*No module named 'flwr'\).*pip install"):
        bench_simulator(setting, str, Peers(flower=Path(sys.executable)))
    with pytest.raises(
        RuntimeMissingError, match=r"has no pfl-research \(.*No module named 'pfl'\).*pip install pfl"
    ):
        bench_simulator(setting, str, Peers(pfl=Path(sys.executable)))
