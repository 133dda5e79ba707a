import json

import pytest

from benchmarks.load.brokers import BrokersSetting, bench_brokers
from benchmarks.load.nats import nats_program
from benchmarks.load.turns import Fleet
from device_sim.emulation.mosquitto import mosquitto_program


@pytest.mark.matrix
@pytest.mark.mosquitto
@pytest.mark.skipif(mosquitto_program() is None, reason="mosquitto is not installed")
@pytest.mark.skipif(nats_program() is None, reason="nats-server is not installed")
def test_every_broker_is_measured_beside_mosquitto() -> None:
    told: list[str] = []
    result = bench_brokers(BrokersSetting("digits-mlp", (Fleet(6, 6),), rounds=2, processes=2), told.append)
    rows = json.loads(result.json())["rows"]
    assert [row["broker"] for row in rows] == ["Mosquitto", "NATS", "amqtt"]
    for row in rows:
        assert row["updates a second"] == pytest.approx(6 / row["round (s)"])
        assert row["/ Mosquitto"] == pytest.approx(row["round (s)"] / rows[0]["round (s)"])
        assert row["broker (MB)"] > 0
    assert told[0] == "digits-mlp: exporting"
    assert "edge-fl bench brokers --agents 6/6 --model digits-mlp" in result.markdown()
