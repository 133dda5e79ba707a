"""Secure aggregation through real agents over real brokers, against a simulation: the same bits, whoever is killed."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from broker.observer import Observer
from broker.poll import Poll
from broker.polling import Polling
from broker.secure_aggregation.polls import KeysPoll, MaskedPoll, SharesPoll, UnmaskPoll
from broker.session import serve
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from device_sim.emulation.chaos import same_weights
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.runs.config import RunConfig, SecureAggregation
from edge_fl.transport.address import BrokerAddress
from tests.e2e.test_resume import coordinator_ends_with

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


def kill_at(monkeypatch: pytest.MonkeyPatch, fleet: Fleet, victims: list[str], kind: type[Poll[Any, Any]]) -> None:
    """Kill these agents as soon as the coordinator has asked for that."""
    ask = Polling.open

    def asked(polling: Polling, current: Poll[Any, Any]) -> None:
        ask(polling, current)
        if isinstance(current, kind):
            for victim in victims:
                fleet.kill(victim)

    monkeypatch.setattr(Polling, "open", asked)


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_a_third_of_the_devices_is_killed_as_they_are_asked(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = [AgentProcess(f"client-{i}", f"digits:{i}/{CLIENTS}") for i in range(CLIENTS)]
    secure, victims = SecureAggregation(holders=2, cohort=CLIENTS, threshold=0.6), ["client-1", "client-4"]
    everyone, start = {agent.client for agent in agents}, digits_bundle.weights()
    with Fleet(agents, address=embedded, root=tmp_path / "fleet", once=False) as fleet:
        for phase in (KeysPoll, SharesPoll, MaskedPoll, UnmaskPoll):
            config: RunConfig = system.config(
                "fedbiad",
                rounds=1,
                clients=CLIENTS,
                quorum=0.5,
                gone_after=1.0,
                secure=secure,
                run=f"killed-{phase.__name__}",
            )
            with monkeypatch.context() as patched:
                kill_at(patched, fleet, victims, phase)
                summary = serve(
                    bundle=digits_bundle,
                    config=config,
                    root=tmp_path / f"run-{phase.__name__}",
                    address=embedded,
                    observer=Observer(),
                )
            (metrics,) = summary.rounds
            # Who is quick may have answered before it was killed.
            assert everyone - set(victims) <= metrics.uplink.keys(), phase
            assert metrics.uplink.keys() | metrics.excused.keys() == everyone, phase
            one = load_file(summary.weights)
            assert any(one[name].tobytes() != start[name].tobytes() for name in one), phase
            assert set(victims) <= fleet.ended().keys(), phase
            for victim in victims:
                fleet.start(victim)


@pytest.mark.timeout(240)
def test_a_coordinator_killed_at_any_point_goes_on_to_the_same_bits(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path
) -> None:
    secure = SecureAggregation(holders=2, cohort=4)
    config: RunConfig = system.config("fedbiad", rounds=4, clients=4, quorum=1.0, secure=secure)
    quiet = system.run(config, system.agents(4), embedded)
    draw, root = random.Random(1), tmp_path / "killed"
    with system.fleet(system.agents(4), embedded) as fleet:
        for _ in range(6):
            lives = draw.randint(5, 40)
            code = coordinator_ends_with(digits_bundle.root, config, root, embedded, lives)
            assert code == -signal.SIGKILL, "the run was over before it was killed often enough"
        assert coordinator_ends_with(digits_bundle.root, config, root, embedded, None) == 0
        fleet.wait(timeout=120)
    assert same_weights(quiet.weights, root / "weights.safetensors")
