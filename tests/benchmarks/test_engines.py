import importlib.util
import json

import pytest

from benchmarks import engines
from benchmarks.engines import EnginesSetting, bench_engines


@pytest.mark.matrix
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_processes_and_actors_are_compared_with_both_kinds_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_MODELS", ("digits-mlp",))
    result = bench_engines(EnginesSetting(population=20, clients=4, steps=2, rounds=2, workers=1), str)
    rows = json.loads(result.json())["rows"]
    assert [(row["engine"], row["sums"]) for row in rows] == [
        (f"{engine}, 1 workers", sums) for sums in ("of floats", "exact") for engine in ("processes", "Ray")
    ]
    assert [row["/ processes"] for row in rows if row["engine"].startswith("processes")] == [1, 1]
    assert all(row["wall (s)"] > 0 and row["CPU here (s)"] > 0 for row in rows)
