"""Clocks that are years off, on devices and on the coordinator: the protocol never reads one."""

import shutil
import sys
from dataclasses import replace

import pytest
from safetensors.numpy import load_file

from edge_fl.transport.address import BrokerAddress


def test_wrong_clocks_change_nothing(system, embedded: BrokerAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    faketime = shutil.which("faketime")
    if faketime is None:
        pytest.skip("faketime is not installed (Debian: apt-get install faketime)")
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    config = system.config(rounds=2, clients=2)
    agents = system.agents(2)
    quiet = system.run(config, agents, embedded)
    skewed = [
        replace(agent, python=(faketime, "-f", offset, sys.executable))
        for agent, offset in zip(agents, ("+10y", "-20y x1.5"), strict=True)
    ]
    ran = system.run(config, skewed, embedded)
    assert all(len(metrics.uplink) == 2 for metrics in ran.rounds)
    one, other = load_file(quiet.weights), load_file(ran.weights)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
