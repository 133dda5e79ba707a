"""Secure aggregation through real agents over real brokers, against a simulation: the same bits, whoever is killed."""

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from broker.observer import Observer
from broker.session import serve
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.runs.config import RunConfig, SecureAggregation
from edge_fl.transport.address import BrokerAddress

CLIENTS, TIERS = 6, 2
SECURE = SecureAggregation(holders=2, cohort=4)


@pytest.mark.timeout(180)
def test_a_fleet_and_a_simulation_give_the_same_bits(
    system, digits_bundle: Bundle, address: BrokerAddress, tmp_path: Path
) -> None:
    agents = [AgentProcess(f"client-{i}", f"digits:{i}/{CLIENTS}", tier=i % TIERS) for i in range(CLIENTS)]
    with Fleet(agents, address=address, root=tmp_path / "fleet", once=False):
        for method in ("fedbiad", "fjord", "afd"):
            config: RunConfig = system.config(
                method, run=f"run-{method}", rounds=3, clients=CLIENTS, secure=SECURE, samples_bound=10.0
            )
            fleet = serve(
                bundle=digits_bundle,
                config=config,
                root=tmp_path / method,
                address=address,
                observer=Observer(),
            )
            simulated = Simulation(
                bundle=digits_bundle,
                config=config,
                population=Population(CLIENTS, TIERS),
                trainer=TrainerSettings("runtime"),
                root=tmp_path / f"simulated-{method}",
                observer=Observer(),
            ).run()
            one, other = load_file(fleet.weights), load_file(simulated.weights)
            assert all(one[name].tobytes() == other[name].tobytes() for name in one), method
            start = digits_bundle.weights()
            assert any(one[name].tobytes() != start[name].tobytes() for name in one), method
            for real, model in zip(fleet.rounds, simulated.rounds, strict=True):
                assert (real.left_out, real.train_loss) == (model.left_out, model.train_loss)
                assert not real.rejections
                assert not real.excused
                assert all(real.uplink[c] > model.uplink[c] for c in real.uplink)  # keys and shares
