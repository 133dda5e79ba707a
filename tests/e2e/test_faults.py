"""Killed devices and restarted brokers cost time and nothing else: the weights are those of a quiet run."""

import threading
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from broker.observer import Observer
from device_sim.emulation.agent_processes import Fleet
from edge_fl.core.errors import RunError
from edge_fl.transport.address import BrokerAddress

ROUNDS = 4


class Saboteur(Observer):
    """Kills a device when round 2 asks it, and the broker when round 3 has its first update and awaits others."""

    def __init__(self, fleet: Fleet, broker) -> None:
        self._fleet, self._broker = fleet, broker
        self._round = 0
        self.done: list[str] = []

    def round_started(self, number: int, selected: list[str]) -> None:
        self._round = number

    def device(self, client: str, status: str) -> None:
        if (self._round, client, status, self.done) == (2, "client-1", "training", []):
            self.done.append("device")
            self._fleet.kill("client-1")
            threading.Timer(0.5, self._fleet.start, ["client-1"]).start()
        if (self._round, status, self.done) == (3, "accepted", ["device"]):
            self.done.append("broker")
            self._broker.kill()
            threading.Timer(0.5, self._broker.start).start()


@pytest.mark.mosquitto
@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        pytest.param("fedavg", {}, marks=pytest.mark.matrix),
        ("fedbiad", {"dropout": [500]}),
        pytest.param("fedavg+stc", {}, marks=pytest.mark.matrix),
    ],
)
def test_a_killed_device_and_a_restarted_broker_change_nothing(
    system, mosquitto, method: str, parameters: dict[str, object]
) -> None:
    config = system.config(method, rounds=ROUNDS, parameters=parameters)
    quiet = system.run(config, system.agents(), mosquitto.address)
    saboteurs: list[Saboteur] = []

    def sabotage(fleet: Fleet) -> Observer:
        saboteurs.append(Saboteur(fleet, mosquitto))
        return saboteurs[0]

    disturbed = system.run(config, system.agents(), mosquitto.address, observer=sabotage)
    assert saboteurs[0].done == ["device", "broker"]
    assert len(disturbed.rounds) == ROUNDS
    assert all(len(metrics.uplink) == 3 for metrics in disturbed.rounds)
    one, other = load_file(quiet.weights), load_file(disturbed.weights)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


class Executioner(Observer):
    """Kills a device for good as soon as it is asked."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def round_started(self, number: int, selected: list[str]) -> None:
        if number == 1:
            self._fleet.kill("client-1")


def test_a_device_that_never_returns_costs_a_round_no_more_than_its_patience(
    system, embedded: BrokerAddress, tmp_path: Path
) -> None:
    config = system.config(rounds=2, gone_after=1.0)
    started = time.monotonic()
    with pytest.raises(RunError, match=r"client-1.*exit code -9"):  # the fleet tells of the dead agent
        system.run(config, system.agents(), embedded, observer=Executioner)
    assert time.monotonic() - started < config.deadline
    lines = (tmp_path / "run-1" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert '"excused":{"client-1":"lost"}' in lines[0]
    assert (tmp_path / "run-1" / "weights.safetensors").exists()


class Reboot(Observer):
    """Takes the only device away in round 2 for longer than it is waited for."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def round_started(self, number: int, selected: list[str]) -> None:
        if number == 2 and selected and not hasattr(self, "_done"):
            self._done = True
            self._fleet.kill("client-0")
            threading.Timer(2.0, self._fleet.start, ["client-0"]).start()


def test_a_run_waits_for_its_only_device_to_come_back(system, embedded: BrokerAddress) -> None:
    config = system.config(rounds=3, clients=1, gone_after=0.3)
    summary = system.run(config, system.agents(1), embedded, observer=Reboot)
    assert [len(metrics.uplink) for metrics in summary.rounds] == [1, 1, 1]
