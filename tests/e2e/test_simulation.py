"""A simulation and a fleet of the same clients: the same bits."""

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.transport.address import BrokerAddress


def test_a_simulation_gives_the_bits_of_a_fleet(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path
) -> None:
    parameters = {"dropout": [500], "stage_boundary": 2}
    config = system.config("fedbiad", rounds=4, clients=2, min_clients=3, parameters=parameters)
    fleet = system.run(config, system.agents(3), embedded)
    simulation = Simulation(
        bundle=digits_bundle,
        config=config,
        population=Population(3),
        trainer=TrainerSettings("runtime"),
        root=tmp_path / "sim",
        observer=Observer(),
    )
    simulated = simulation.run()
    assert [m.uplink for m in simulated.rounds] == [m.uplink for m in fleet.rounds]
    one, other = load_file(fleet.weights), load_file(simulated.weights)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_more_clients_than_there_are_cannot_be_picked(system, digits_bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot pick 3 of 2 clients"):
        Simulation(
            bundle=digits_bundle,
            config=system.config(clients=3),
            population=Population(2),
            trainer=TrainerSettings("stacked"),
            root=tmp_path / "sim",
            observer=Observer(),
        )
