import json

import pytest

from edge_fl.bench import simulator
from edge_fl.bench.simulator import SimulatorSetting, bench_simulator


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
