"""The virtual clock of an emulated fleet, against numbers worked out by hand."""

import os

import pytest

from benchmarks.fleet_clock import VirtualFleet
from benchmarks.fleet_runs import AGENTS, TIERS, FleetSetting, attempts
from device_sim.emulation.fleet_file import parse_fleet
from device_sim.simulation.time_model import Traffic
from edge_fl.runs.metrics import RoundMetrics

FLEET = b"""
data: digits
scale: 10
profiles:
  fast: {source: a test, resnet18_ms: 21.94, memory_mb: 1, watts: 2, link: {down: 80, up: 80}}
  slow: {source: a test, resnet18_ms: 219.4, memory_mb: 1, watts: 1, link: {down: 8, up: 8}}
devices: [{profile: fast}, {profile: slow}]
"""


def metrics(tiers: dict[str, int]) -> RoundMetrics:
    return RoundMetrics(
        round=1,
        seconds=0.0,
        scores={"accuracy": 0.0},
        loss=0.0,
        train_loss=0.0,
        uplink={},
        downlink={},
        excused={},
        rejections={},
        tiers=tiers,
        took={},
    )


def test_a_round_is_the_slowest_devices_in_the_tier_it_was_asked_in_or_the_deadline() -> None:
    devices = {device.client: device for device in parse_fleet(FLEET, "here").members()}
    traffic = Traffic({0: 1_000_000, 1: 1_000_000}, {0: 1_000_000, 1: 500_000})
    fleet = VirtualFleet(devices, [0.01, 0.005], traffic, local_steps=20, deadline=50.0)
    # 20 steps of 10 ms, 10 times as long; 1 MB at 8 Mbps each way, a tenth of the link's.
    assert fleet.client("client-0", 0) == pytest.approx((2.0, 2.0))
    assert fleet.client("client-1", 0) == pytest.approx((20.0, 20.0))
    assert fleet.client("client-1", 1) == pytest.approx((10.0, 15.0))
    assert fleet.round(metrics({"client-0": 0, "client-1": 1})) == pytest.approx(25.0)
    # In device seconds, a tenth of those here.
    assert fleet.joules(metrics({"client-0": 0, "client-1": 1})) == pytest.approx(2 * 0.4 + 1 * 2.5)
    hasty = VirtualFleet(devices, [0.01, 0.005], traffic, local_steps=20, deadline=30.0)
    assert hasty.round(metrics({"client-0": 0, "client-1": 0})) == 30.0
    assert hasty.joules(metrics({"client-1": 0})) == pytest.approx(3.0)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the fleet needs two cores")
def test_the_fleet_has_twenty_agents_in_five_tiers_and_one_that_is_starved() -> None:
    setting = FleetSetting(rounds=10, local_steps=200, deadline=8.5, scale=4.0)
    *devices, starved = sorted(setting.file.members(), key=lambda device: -device.memory_mb)
    assert (AGENTS, len(TIERS), len(devices)) == (20, 5, 20)
    assert starved.memory_mb == 60
    assert {attempt.method for attempt in attempts(10)} == {"fjord", "heterofl", "efd", "fedavg", "fedbiad"}
    for attempt in attempts(10):
        assert setting.config(attempt).tiers == "auto"
