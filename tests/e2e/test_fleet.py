"""Agents on emulated hardware, through the fixture that users have, and through the command line."""

import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import load_file

from broker.observer import Observer
from broker.session import serve
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.transport.address import BrokerAddress

SCALE = "data: digits\nscale: 4\n"


def test_hardware_changes_no_bit(edge_fl_fleet, digits_bundle: Bundle, tmp_path: Path) -> None:
    fleet = edge_fl_fleet(SCALE + "devices: [{profile: raspberry-pi-5}, {profile: phone-low, tier: 1}]")
    settings = {"parameters": {"dropout": [200, 500]}, "rounds": 2, "quorum": 1.0}
    real = fleet.train(digits_bundle, "fedbiad", **settings).summary
    simulated = Simulation(
        bundle=digits_bundle,
        config=msgspec.structs.replace(real.config, run="simulated"),
        population=Population(2, tiers=2),
        trainer=TrainerSettings("runtime"),
        root=tmp_path / "simulated",
        observer=Observer(),
    ).run()
    assert [metrics.uplink for metrics in real.rounds] == [metrics.uplink for metrics in simulated.rounds]
    theirs = load_file(simulated.weights)
    for name, weights in load_file(real.weights).items():
        np.testing.assert_array_equal(weights, theirs[name])


def test_devices_on_emulated_hardware_measure_each_tiers_steps_and_take_part(
    edge_fl_fleet, digits_bundle: Bundle
) -> None:
    fleet = edge_fl_fleet(
        SCALE
        + """
profiles:
  snail: {source: a test, resnet18_ms: 3000, memory_mb: 500, watts: 1, link: {down: 400, up: 400}}
devices: [{profile: raspberry-pi-5}, {profile: snail}]
"""
    )
    outcome = fleet.train(digits_bundle, "fjord", tiers="auto", parameters={"widths": [1000, 200]}, rounds=1)
    fast, slow = outcome.step_seconds["client-0"], outcome.step_seconds["client-1"]
    assert len(fast) == len(slow) == 2
    assert all(seconds is not None and seconds > 0 for seconds in (*fast, *slow))
    assert set(outcome.summary.rounds[0].uplink) == {"client-0", "client-1"}


def test_devices_evaluate_on_what_they_hold_out(edge_fl_fleet, digits_bundle: Bundle) -> None:
    fleet = edge_fl_fleet(SCALE + "devices: [{profile: phone-high, test_share: 0.3}, {profile: phone-mid}]")
    (metrics,) = fleet.train(digits_bundle, "fedavg", rounds=1, evaluate_on=2).summary.rounds
    assert [score.clients for score in metrics.on_devices.values()] == [1]


def test_a_device_short_of_memory_fails_alone(edge_fl_fleet, digits_bundle: Bundle) -> None:
    fleet = edge_fl_fleet(
        SCALE + "devices: [{profile: raspberry-pi-5, count: 2}, {profile: phone-low, memory_mb: 1}]"
    )
    summary = fleet.train(digits_bundle, clients_per_round=2).summary
    assert [set(metrics.uplink) for metrics in summary.rounds] == [{"client-0", "client-2"}] * 2
    assert fleet.problems() == {"client-1": "client-1: The device's 1 MB of memory do not suffice for its data."}


def test_a_device_without_power_declines_and_others_go_on(edge_fl_fleet, digits_bundle: Bundle) -> None:
    fleet = edge_fl_fleet(
        SCALE
        + """
devices:
  - {profile: phone-high, battery: 0.03}
  - {profile: phone-high, battery: 0.03, charging: [[0, 1000]]}
"""
    )
    (metrics, _) = fleet.train(digits_bundle, tiers="auto").summary.rounds
    assert set(metrics.uplink) == {"client-1"}
    reason = "declined: The battery is at 3.0%, and the device is not being charged."
    assert metrics.excused == {"client-0": reason}


def test_a_device_comes_when_it_is_online(edge_fl_fleet, digits_bundle: Bundle) -> None:
    fleet = edge_fl_fleet(
        SCALE + "devices: [{profile: raspberry-pi-5}, {profile: raspberry-pi-5, online: [[0.5, 900]]}]"
    )
    (metrics, _) = fleet.train(digits_bundle).summary.rounds  # both are waited for
    assert set(metrics.uplink) == {"client-0", "client-1"}
    assert not fleet.problems()


def test_the_command_starts_several_agents_in_a_process(
    digits_bundle: Bundle, system, embedded: BrokerAddress, tmp_path: Path
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(SCALE + "agents_per_process: 2\ndevices: [{profile: phone-low, count: 3}]")
    command = [sys.executable, "-m", "edge_fl", "fleet", str(file), "--once", "--broker", str(embedded)]
    run = threading.Thread(
        target=serve,
        kwargs={
            "bundle": digits_bundle,
            "config": system.config(rounds=2),
            "root": tmp_path / "run",
            "address": embedded,
            "observer": Observer(),
        },
    )
    run.start()
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "fleet")], capture_output=True, text=True, timeout=100, check=False
    )
    run.join(60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "weights.safetensors").exists()
    assert {path.name for path in (tmp_path / "fleet").glob("*.log")} == {"client-0.log", "client-2.log"}
