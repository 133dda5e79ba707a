"""A run that ends for want of devices keeps what it has, and goes on when they are back."""

from pathlib import Path

import pytest

from broker.observer import Observer
from broker.session import resume
from device_sim.emulation.agent_processes import Fleet
from device_sim.emulation.chaos import same_weights
from edge_fl.core.errors import RunError
from edge_fl.transport.address import BrokerAddress


class Killer(Observer):
    """Kills a device for good when round 2 has the other's update."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._round = fleet, 0

    def round_started(self, number: int, selected: list[str]) -> None:
        self._round = number
        if number == 2 and "client-1" in selected:
            self._fleet.kill("client-1")


class Stop(Exception):  # noqa: N818
    """What ends a coordinator in the middle of a round."""


class Stopper(Observer):
    """Ends the coordinator in round 2."""

    def round_started(self, number: int, selected: list[str]) -> None:
        if number == 2:
            raise Stop


def test_a_run_that_is_short_of_devices_keeps_its_updates_and_can_be_resumed(
    system, embedded: BrokerAddress, tmp_path: Path
) -> None:
    options = {"rounds": 3, "clients": 2, "quorum": 1.0, "gone_after": 0.5, "wait": 4.0}
    quiet = system.run(system.config(**options), system.agents(2), embedded)
    config, root = system.config(**options), tmp_path / "short"
    with system.fleet(system.agents(2), embedded) as fleet:
        with pytest.raises(RunError, match=r"Only 0 of 1 devices"):
            system.coordinate(config, root, embedded, Killer(fleet))
        assert not (root / "weights.safetensors").exists()
        assert any((root / "updates").iterdir())
        fleet.start("client-1")
        done = resume(root, address=embedded, observer=Observer())
        fleet.wait(timeout=60)
    assert same_weights(quiet.weights, done.weights)
    assert all(len(metrics.uplink) == 2 for metrics in done.rounds)


def test_a_resumed_run_does_not_wait_for_ever_for_a_device_that_is_gone(
    system, embedded: BrokerAddress, tmp_path: Path
) -> None:
    config = system.config(rounds=2, clients=2, quorum=0.5, gone_after=0.5, wait=4.0, deadline=5.0)
    root = tmp_path / "stopped"
    with system.fleet(system.agents(2), embedded) as fleet:
        with pytest.raises(Stop):
            system.coordinate(config, root, embedded, Stopper())
        fleet.kill("client-1")
        done = resume(root, address=embedded, observer=Observer())
    assert list(done.rounds[-1].uplink) == ["client-0"]
