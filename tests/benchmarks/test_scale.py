import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.load.scale import ScaleSetting, bench_scale
from benchmarks.load.slow_cores import slow_cores
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
    order = (0, 1, 2, 2, 1, 0)  # a slow phase of the machine is one of all
    assert told[-6:] == [f"16/5 agents, {count} workers: round {i // 3 + 1}" for i, count in enumerate(order)]


@pytest.mark.matrix
@pytest.mark.mosquitto
@pytest.mark.skipif(mosquitto_program() is None, reason="mosquitto is not installed")
def test_slow_cores_lose_no_update() -> None:
    setting = ScaleSetting("digits-mlp", (Fleet(8, 8),), (0, 2), rounds=2, processes=1, turns=(1, 4))
    found = json.loads(bench_scale(setting, lambda _: None).json())
    assert [(row["a core's speed"], row["workers"]) for row in found["rows"]] == [
        (speed, workers) for speed in ("1", "1/4") for workers in ("0", "2")
    ]
    (note,) = (note for note in found["notes"] if "of a core each" in note)
    assert "8 of 8 devices, 1/4 of a core each: with 2 workers a round and its closing take" in note
    assert "--slowed 1 --slowed 4" in found["command"]


def test_a_process_stands_still_in_turns_and_runs_afterwards() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            with slow_cores([busy.pid], turns=5):
                for state in "TRT":
                    while state_of(busy.pid) != state:
                        time.sleep(0.001)
            while state_of(busy.pid) != "R":
                time.sleep(0.001)
        finally:
            busy.kill()


def state_of(pid: int) -> str:
    """``R`` of a process that runs or could, ``T`` of one that is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
