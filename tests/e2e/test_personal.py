"""Tensors that devices keep to themselves, over a real broker: trained, scored, predicted with, and never sent."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import edge_fl
from broker.observer import Observer
from device_sim.emulation.agent_processes import Fleet
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.agent.kept_model import read_model
from edge_fl.core.arrays import unpacked
from edge_fl.core.bundle import Bundle
from edge_fl.data.registry import load_dataset
from edge_fl.training.personal import personal_tensors
from edge_fl.transport.address import BrokerAddress
from tests.e2e.conftest import System
from tests.e2e.test_final_model import plain_outputs

SHARE, CLIENTS = 0.25, 3


@pytest.fixture
def own(personal_bundle: Bundle, tmp_path: Path) -> System:
    return System(personal_bundle, tmp_path)


class Killer(Observer):
    """Kills a device once its update of the second round has been accepted, and starts it again."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._round = fleet, 0

    def round_started(self, number: int, selected: list[str]) -> None:
        self._round = number

    def device(self, client: str, status: str) -> None:
        if (self._round, client, status) == (2, "client-1", "accepted"):
            self._fleet.kill(client)
            self._fleet.start(client)


@pytest.mark.matrix
@pytest.mark.parametrize("method", ["fedbiad+dgc", pytest.param("fjord", marks=pytest.mark.matrix)])
def test_a_fleet_and_a_simulation_give_the_same_bits_and_scores(
    own: System, personal_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path, method: str
) -> None:
    """Whatever a device's process is: this one's, a confined one's, or that of a device that was killed."""
    agents = [replace(agent, test_share=SHARE) for agent in own.agents(CLIENTS)]
    config = own.config(method, rounds=4, evaluate_on=CLIENTS, quorum=1.0)
    fleet = own.run(config, agents, embedded, observer=Killer)
    simulated = Simulation(
        bundle=personal_bundle,
        config=config,
        population=Population(CLIENTS, test_share=SHARE),
        trainer=TrainerSettings("runtime"),
        root=tmp_path / "simulated",
        observer=Observer(),
    ).run()
    one, other = load_file(fleet.weights), load_file(simulated.weights)
    assert one.keys() == other.keys() == personal_bundle.weights().keys()
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert [metrics.uplink for metrics in fleet.rounds] == [metrics.uplink for metrics in simulated.rounds]
    told, expected = ([metrics.on_devices for metrics in run.rounds] for run in (fleet, simulated))
    assert (told[0], told[2:]) == (expected[0], expected[2:])  # in the second it is not there to be asked


def test_devices_predict_with_tensors_of_their_own(
    own: System, personal_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path
) -> None:
    devices = [
        edge_fl.Device(
            str(embedded), f"digits:{n}/2", id=f"d{n}", state=tmp_path / f"{n}", once=True, keep_model=True
        )
        for n in range(2)
    ]
    threads = [threading.Thread(target=device.run, daemon=True) for device in devices]
    for thread in threads:
        thread.start()
    done = own.coordinate(own.config(rounds=2, clients=2, min_clients=2), tmp_path / "run", embedded, Observer())
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()

    weights, x, heads = load_file(done.weights), load_dataset("digits").test.x, []
    for number, device in enumerate(devices):
        kept = read_model(tmp_path / str(number))
        assert kept is not None
        head = personal_tensors(personal_bundle, unpacked(kept.personal))
        np.testing.assert_allclose(device.predict(x), plain_outputs({**weights, **head}, 1000, x), atol=1e-5)
        heads.append(head["5.weight"])
        device.close()
    assert not np.array_equal(*heads)
    assert not any(np.array_equal(head, personal_bundle.frozen.personal["5.weight"]) for head in heads)
