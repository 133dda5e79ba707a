"""A run as JSON lines, beside what is told on standard error."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker.log_view import LogView
from broker.status import status_of
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from device_sim.emulation.mosquitto import free_port
from edge_fl.core.bundle import Bundle
from edge_fl.runs.metrics import RoundMetrics, TierScore
from edge_fl.transport.address import BrokerAddress


def test_a_run_is_logged_round_by_round(digits_bundle: Bundle, tmp_path: Path) -> None:
    address = BrokerAddress("127.0.0.1", free_port())
    options = ("--rounds", "2", "--clients-per-round", "1", "--local-steps", "1", "-o", tmp_path / "run", "--json")
    log = ("--log-file", tmp_path / "serve.log", "--log-format", "json")
    command = [
        sys.executable,
        "-m",
        "edge_fl",
        "serve",
        digits_bundle.root,
        "--port",
        address.port,
        *options,
        *log,
    ]
    with (
        (tmp_path / "out").open("w") as out,
        subprocess.Popen([*map(str, command)], stdout=out, stderr=out) as serve,
        Fleet(
            [AgentProcess("client-0", "digits:0/10")], address=address, root=tmp_path / "fleet", connect_timeout=60
        ) as fleet,
    ):
        fleet.wait(100)
        until = time.monotonic() + 60
        while serve.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.05)
    assert serve.returncode == 0, (tmp_path / "out").read_text()
    lines = [json.loads(line) for line in (tmp_path / "serve.log").read_text().splitlines()]
    assert {line["run"] for line in lines if line["logger"] == "broker.log_view"} == {lines[0]["run"]}
    assert [line["round"] for line in lines if "scores" in line] == [0, 1, 2]  # the bundle's own model first
    accepted = [(line["round"], line["client"]) for line in lines if line.get("status") == "accepted"]
    assert accepted == [(1, "client-0"), (2, "client-0")]
    assert "before round 1  accuracy " in (tmp_path / "out").read_text()
    (device,) = status_of(tmp_path / "run").devices
    assert (device.accepted, device.connected) == (2, None)  # nobody watches whom, once it has ended
    assert device.heard is not None


def test_what_devices_find_is_a_line_a_tier(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "broker.log_view")
    scores = {
        0: TierScore(2, 40, 0.5, {"accuracy": 0.75}, 1000),
        3: TierScore(1, 10, 1.5, {"accuracy": 0.25}, 500),
    }
    metrics = RoundMetrics(7, 1.5, 1.25, 1.5, {}, {}, {}, {}, {"accuracy": 0.5}, on_devices=scores)
    LogView().round_closed(metrics)
    assert [record.getMessage() for record in caplog.records][1:] == [
        "round 7: tier 0 on devices: accuracy 75.0%",
        "round 7: tier 3 on devices: accuracy 25.0%",
    ]
