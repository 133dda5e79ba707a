import json

import pytest

from benchmarks.load.bench import LoadSetting, bench_load
from benchmarks.load.turns import Fleet
from device_sim.emulation.mosquitto import mosquitto_program
from edge_fl.core.errors import ConfigError


@pytest.mark.matrix
@pytest.mark.mosquitto
@pytest.mark.skipif(mosquitto_program() is None, reason="mosquitto is not installed")
def test_both_programs_move_the_same_bytes_and_lose_none() -> None:
    setting = LoadSetting("digits-mlp", (Fleet(8, 8), Fleet(12, 5)), rounds=2, processes=2, tls=True)
    told: list[str] = []

    result = bench_load(setting, told.append)

    rows = json.loads(result.json())["rows"]
    assert [(row["registered"], row["selected"], row["TLS"], row["round"]) for row in rows] == [
        (str(agents), str(selected), tls, number)
        for agents, selected in ((8, 8), (12, 5))
        for tls in ("no", "yes")
        for number in ("1", "2", "median")
    ]
    for row in rows:
        assert row["lost"] == 0
        assert row["sent again"] == 0
        assert row["bare (s)"] > 0
        assert row["edge-fl / bare"] == pytest.approx(row["edge-fl (s)"] / row["bare (s)"])
        assert row["hashing / bare"] == pytest.approx(row["hashing (s)"] / row["bare (s)"])
        assert 0 < row["resident (MB)"] <= row["peak (MB)"]
        assert row["goals"] == "" or row["goals"].startswith("edge-fl / bare ≤ 1.3: ")
    assert rows[0]["MB up"] / 8 == pytest.approx(rows[6]["MB up"] / 5)
    assert "A TLS handshake takes" in result.markdown()
    assert told[0] == "digits-mlp: exporting"
    assert told[-1] == "12 agents, 5 selected: round 2"
    assert "--agents 8/8 --agents 12/5 --model digits-mlp" in result.markdown()


@pytest.mark.parametrize("text", ["", "0", "ten", "5/6", "5/0", "-1", "5/"])
def test_fleets_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="A fleet is so many agents"):
        Fleet.parse(text)
    assert Fleet.parse("5") == Fleet(5, 5)
    assert Fleet.parse("5/3") == Fleet(5, 3)


@pytest.mark.mosquitto
@pytest.mark.skipif(mosquitto_program() is None, reason="mosquitto is not installed")
def test_more_agents_than_files_may_be_open_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="open files"):
        bench_load(LoadSetting("digits-mlp", (Fleet(10**7, 1),), rounds=1, processes=1), str)
