import json

import pytest

from benchmarks import population
from benchmarks.population import PopulationSetting, bench_population
from edge_fl.data.registry import Samples, load_dataset


@pytest.mark.matrix
def test_populations_are_simulated_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load_dataset("digits").train
    few = Samples(digits.x.repeat(4, axis=2).repeat(4, axis=3)[:, :, 2:30, 2:30], digits.y)

    class Data:
        train = few

    monkeypatch.setattr(population, "load_dataset", lambda _name: Data)
    result = bench_population(PopulationSetting((40, 60), clients=4, rounds=2, processes=1), str)
    rows = json.loads(result.json())["rows"]
    assert [row["clients"] for row in rows] == ["40", "60"]
    assert all(row["later rounds (s)"] > 0 and row["own memory (MB)"] > 10 for row in rows)
    assert "--population 40 --population 60 --clients 4" in result.markdown()
