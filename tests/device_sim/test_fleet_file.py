"""The fleet file: who is in it, what share of a core each has, and what is refused."""

import os
from pathlib import Path

import pytest

from device_sim.emulation.fleet_file import parse_fleet, read_fleet
from device_sim.emulation.profiles import PROFILES
from device_sim.simulation.links import Link
from device_sim.simulation.settings import Population
from edge_fl.core.errors import ConfigError

FLEET = b"""
data: digits
partition: labels=5
scale: 40
profiles:
  board:
    source: measured on my desk
    resnet18_ms: 219.4
    memory_mb: 100
    link: {down: 4, up: 2, latency: 0.1}
    watts: 3
devices:
  - {profile: raspberry-pi-5}
  - {profile: board, count: 3, tier: 1}
"""


def test_devices_are_numbered_as_the_clients_of_a_simulation() -> None:
    devices = parse_fleet(FLEET, "here").members()
    population = Population(4, tiers=2, mix=(1, 3))
    assert [device.group.tier for device in devices] == [population.tier(i) for i in range(4)]
    assert [device.data for device in devices] == [f"digits:{i}/4:labels=5" for i in range(4)]


def test_shares_are_the_profiles_and_the_scales() -> None:
    fast, slow, *_ = parse_fleet(FLEET, "here").members()
    assert slow.profile.slowdown == pytest.approx(10.0)
    assert slow.share == pytest.approx(1 / 400)
    assert fast.share / slow.share == pytest.approx(219.4 / PROFILES["raspberry-pi-5"].resnet18_ms)
    assert slow.profile.link.slowed(slow.scale) == Link(0.1, 0.05, latency=4.0, recovery=8.0)
    assert slow.memory_mb == 100


def test_every_profile_says_where_it_is_from() -> None:
    for name in ("jetson-nano", "jetson-orin-nano", "raspberry-pi-4", "raspberry-pi-5"):
        assert "[ncnn]" in PROFILES[name].source
    assert [PROFILES[f"phone-{name}"].slowdown for name in ("low", "mid", "high")] == sorted(
        (PROFILES[f"phone-{name}"].slowdown for name in ("low", "mid", "high")), reverse=True
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("data: digits\ndevices: [{profile: abacus}]", "no profile 'abacus'; there are jetson-nano, "),
        ("data: digits\ndevices: []", "this one has none"),
        ("data: digits", "does not describe a fleet: Object missing required field `devices`"),
        ("- 1\n- 2", "does not describe a fleet: Expected `object`, got `array`"),
        ("a: b: c", "does not describe a fleet: mapping values"),
        ("data: digits\ndevices: [{profile: phone-low, colour: red}]", "unknown field `colour`"),
        ("data: digits\nscale: 0\ndevices: [{profile: phone-low}]", "scale is above 0, not 0"),
        ("data: digits\ndevices: [{profile: phone-low, count: 0}]", "1 or more devices"),
        ("data: digits\ndevices: [{profile: phone-low, memory_mb: 0}]", "1 MB of memory or more"),
        ("data: digits\ndevices: [{profile: phone-low, battery: 2}]", "a share in"),
        ("data: digits\ndevices: [{profile: jetson-nano, battery: 0.5}]", "'jetson-nano' has no battery"),
        ("data: digits\ndevices: [{profile: jetson-nano, charging: [[0, 1]]}]", "'jetson-nano' has no battery"),
        ("data: digits\nruntime: abacus\ndevices: [{profile: phone-low}]", "no runtime 'abacus'; there are "),
        ("data: digits\ndevices: [{profile: phone-low, online: [[5, 3]]}]", r"unlike \[5, 3\]"),
        (
            "data: digits\nagents_per_process: 2\ndevices: [{profile: phone-low, online: [[1, 3]]}]",
            "need a process each",
        ),
        ("data: digits\nagents_per_process: 0\ndevices: [{profile: phone-low}]", "1 or more agents"),
        (
            "data: d\nprofiles: {x: {source: s, resnet18_ms: 0, memory_mb: 1, watts: 1, link: {down: 1, up: 1}}}\n"
            "devices: [{profile: x}]",
            "resnet18_ms above 0",
        ),
    ],
)
def test_what_is_no_fleet_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_fleet(text.encode(), "here").members()


def test_shares_above_the_machine_are_refused_with_a_scale_that_would_do() -> None:
    cores = len(os.sched_getaffinity(0))
    text = f"data: digits\ndevices: [{{profile: phone-high, count: {3 * cores}}}]"
    with pytest.raises(ConfigError, match=rf"this machine has {cores}; a scale of 3 would do"):
        parse_fleet(text.encode(), "here").members()
    assert len(parse_fleet(f"{text}\nscale: 3".encode(), "here").members()) == 3 * cores
    with pytest.raises(ConfigError, match=rf"need {cores}\.01 cores, .* has {cores}; a scale of 3 would do"):
        parse_fleet(f"{text}\nscale: 2.999".encode(), "here").members()
    with pytest.raises(ConfigError, match=r"one of them 2\.00, and .* a scale of 1 would do"):
        parse_fleet(b"data: digits\nscale: 0.5\ndevices: [{profile: phone-high}]", "here").members()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_fleet(tmp_path / "fleet.yaml")
