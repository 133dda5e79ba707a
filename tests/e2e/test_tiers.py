"""Devices whose tier is chosen by what they measured of themselves."""

from dataclasses import replace

from broker.observer import Observer
from device_sim.emulation.agent_processes import Fleet
from edge_fl.transport.address import BrokerAddress


def test_a_device_trains_in_the_ablest_tier_that_it_can_do_in_time(system, embedded: BrokerAddress) -> None:
    agents = [replace(agent, tier=3) for agent in system.agents(2)]  # which means nothing then
    parameters = {"widths": [250, 1000, 500]}
    ample = system.config("fjord", rounds=2, clients=2, parameters=parameters, tiers="auto")
    done = system.run(ample, agents, embedded)
    assert [metrics.tiers for metrics in done.rounds] == [{"client-0": 1, "client-1": 1}] * 2
    assert all(0 < seconds < 60 for metrics in done.rounds for seconds in metrics.took.values())


class Restarter(Observer):
    """Kills a device that was asked, and starts it again: it has to measure anew."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._left = fleet, ["client-1", "client-0"]

    def round_started(self, number: int, selected: list[str]) -> None:
        if self._left:
            client = self._left.pop()
            self._fleet.kill(client)
            self._fleet.start(client)


def test_a_device_that_starts_anew_in_a_round_does_its_task_and_measures_again(
    system, embedded: BrokerAddress
) -> None:
    parameters = {"widths": [1000, 500]}
    config = system.config("fjord", rounds=3, clients=2, parameters=parameters, tiers="auto", quorum=1.0)
    done = system.run(config, system.agents(2), embedded, observer=Restarter)
    assert all(metrics.uplink.keys() == {"client-0", "client-1"} for metrics in done.rounds)
