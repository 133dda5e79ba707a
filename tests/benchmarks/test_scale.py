import json

import pytest

from benchmarks.load.scale import ScaleSetting, bench_scale
from benchmarks.load.turns import Fleet
from device_sim.emulation.mosquitto import mosquitto_program


@pytest.mark.matrix
@pytest.mark.mosquitto
@pytest.mark.skipif(mosquitto_program() is None, reason="mosquitto is not installed")
def test_every_part_is_measured_and_no_update_is_lost() -> None:
    setting = ScaleSetting("digits-mlp", (Fleet(8, 8), Fleet(16, 5)), (0, 1, 2), rounds=2, processes=1)
    told: list[str] = []
    found = json.loads(bench_scale(setting, told.append).json())
    assert [(row["registered"], row["workers"]) for row in found["rows"]] == [
        (agents, workers) for agents in ("8", "16") for workers in ("0", "1", "2")
    ]
    for row in found["rows"]:
        assert row["coordinator (ms)"] > 0
        assert row["Mosquitto (MB)"] > 0
        assert (row["a worker (MB)"] > 0) == (row["workers"] != "0")
        assert row["workers (ms)"] >= 0  # a clock tick is more than a few small updates take
        assert row["CPU of both (ms)"] == pytest.approx(row["coordinator (ms)"] + row["workers (ms)"])
    assert sum("with 2 workers an update costs" in note for note in found["notes"]) == 2
    assert any(
        note.startswith("Mosquitto: ") and "at 100,000,000 (extrapolated)" in note for note in found["notes"]
    )
    assert told[-1] == "16/5 agents, 2 workers: round 2"
