"""`edge-fl device doctor` on a machine where all is well, and where one thing is not."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.embedded import EmbeddedBroker
from device_sim.emulation.mosquitto import Mosquitto, mosquitto_program
from edge_fl.agent.doctor import Examined, Finding, examine
from edge_fl.agent.state import StateFolder
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Connected

CHECKS = ["broker", "certificate", "clock", "runtime", "programs", "data", "state", "disk", "memory"]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerAddress]:
    with EmbeddedBroker(port=0) as embedded:
        yield embedded.address


@pytest.fixture
def agent(broker: BrokerAddress, tmp_path: Path) -> Examined:
    return Examined(broker, "client-1", "digits:0/10", tmp_path / "state", "onnx", "edge-fl", 30.0)


def found(agent: Examined, check: str) -> Finding:
    findings = {finding.check: finding for finding in examine(agent)}
    assert list(findings) == CHECKS
    others = {f.level for f in findings.values() if f.check not in (check, "memory", "programs")}
    assert others == {"ok"}
    assert findings[check].sentence.endswith(".")
    return findings[check]


def doctor(*options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge_fl", "device", "doctor", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_where_all_is_well(broker: BrokerAddress, tmp_path: Path) -> None:
    well = ("--broker", str(broker), "--data", "digits:0/10", "--id", "client-1", "--state", tmp_path / "new")
    done = doctor(*well)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if " ok " in line][:4] == CHECKS[:4]
    assert "144 samples of shape (1, 8, 8) in float32, classes 0 to 9." in done.stdout
    assert not (tmp_path / "new").exists()


def test_what_is_held_out_is_told_apart(agent: Examined) -> None:
    data = found(replace(agent, test_share=0.25), "data")
    trained, held_out = re.search(r"^(\d+) samples of .*, and (\d+) held out\.$", data.sentence).groups()
    assert int(trained) + int(held_out) == 144
    assert int(held_out) > 20
    assert "--test-share" in found(replace(agent, test_share=0.9999999), "data").sentence


def test_json_and_the_code_of_what_failed(tmp_path: Path) -> None:
    done = doctor("--broker", "mqtt://127.0.0.1:1", "--data", "digitz", "--json", "--connect-timeout", "0.1")
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert list(findings) == CHECKS
    assert done.returncode == findings["broker"]["code"] == 16
    assert (findings["data"]["level"], findings["data"]["code"]) == ("failed", 14)
    assert "No MQTT broker answers at mqtt://127.0.0.1:1" in findings["broker"]["sentence"]
    assert findings["runtime"] == {
        "check": "runtime",
        "level": "ok",
        "sentence": findings["runtime"]["sentence"],
        "code": 0,
    }


def test_what_listens_is_no_broker(agent: Examined) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        finding = found(replace(agent, broker=BrokerAddress(*mute.getsockname()), connect_timeout=1), "broker")
    assert (finding.level, finding.code) == ("failed", 16)
    assert "does not speak MQTT" in finding.sentence


@pytest.mark.mosquitto
def test_a_broker_that_lets_nothing_through(agent: Examined, tmp_path: Path) -> None:
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed (Debian: apt-get install mosquitto)")
    (tmp_path / "acl").write_text("topic read edge-fl/#\n")
    mosquitto = Mosquitto(tmp_path)
    with (tmp_path / "mosquitto.conf").open("a") as config:
        config.write(f"acl_file {tmp_path / 'acl'}\nuser root\n")  # root's own files, where it is root who tests
    with mosquitto:
        finding = found(replace(agent, broker=mosquitto.address), "broker")
    assert (finding.level, finding.code) == ("failed", 16)
    assert "does not come back: let the device publish and subscribe there" in finding.sentence


def test_a_running_agent_is_not_disturbed(agent: Examined) -> None:
    running = Connection(address=agent.broker, client_id=agent.client, subscriptions=["edge-fl/1/all"])
    running.open(timeout=5)
    folder = StateFolder(agent.state, agent.client)
    try:
        assert isinstance(running.next(5), Connected)
        assert found(agent, "state").sentence == f"'{agent.state}' can be written, and is client-1's."
        assert running.next(0.2) is None
        assert sorted(path.name for path in agent.state.iterdir()) == ["identity.json", "lock"]
    finally:
        folder.close()
        running.close()


def test_a_broker_elsewhere_is_not_encrypted(agent: Examined) -> None:
    findings = {
        f.check: f for f in examine(replace(agent, broker=BrokerAddress("192.0.2.1", 1), connect_timeout=0))
    }
    assert findings["certificate"].level == "warning"
    assert "mqtt:// is not encrypted" in findings["certificate"].sentence


def test_a_clock_that_is_behind_what_it_dated(agent: Examined) -> None:
    StateFolder(agent.state, agent.client).close()
    assert found(agent, "clock").level == "ok"
    tomorrow = time.time() + 86400
    os.utime(agent.state / "identity.json", (tomorrow, tomorrow))
    finding = found(agent, "clock")
    assert (finding.level, finding.code) == ("warning", 0)
    assert "identity.json' was written at" in finding.sentence


@pytest.mark.parametrize(
    ("runtime", "sentence"),
    [
        ("tensorflow", "There is no runtime 'tensorflow'; there are"),
        ("ort_training", "EDGE_FL_ORT_TRAINING_PYTHON"),
    ],
)
def test_a_runtime_that_is_not_there(
    agent: Examined, runtime: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGE_FL_ORT_TRAINING_PYTHON", raising=False)
    finding = found(replace(agent, runtime=runtime), "runtime")
    assert (finding.level, finding.code) == ("failed", 18)
    assert sentence in finding.sentence


def test_data_that_cannot_be_read(agent: Examined) -> None:
    finding = found(replace(agent, data="csv:/nowhere.csv"), "data")
    assert (finding.level, finding.code) == ("failed", 14)
    assert "'/nowhere.csv' cannot be read" in finding.sentence


def test_a_state_folder_of_another_or_of_nobody(agent: Examined) -> None:
    StateFolder(agent.state, "client-2").close()
    finding = found(agent, "state")
    assert (finding.level, finding.code) == ("failed", 21)
    assert "belongs to client 'client-2'" in finding.sentence
    (agent.state / "identity.json").write_text("{")
    assert "identity.json' is damaged; remove it" in found(agent, "state").sentence
