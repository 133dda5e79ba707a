"""Differential privacy through real agents over a broker: the bits of a simulation, and a record of what it cost."""

import random
import signal
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from broker.accountant import epsilon_of
from broker.observer import Observer
from broker.session import serve
from broker.status import status_of
from broker.summary import RunSummary
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from device_sim.emulation.chaos import same_weights
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.cli.main import app
from edge_fl.core.bundle import Bundle
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.runs.privacy import Privacy
from edge_fl.runs.run import Run
from edge_fl.transport.address import BrokerAddress
from tests.e2e.test_resume import coordinator_ends_with, metrics_of

CLIENTS = 2
CLIPPED = Privacy("central", noise=0.0, clip=0.3, quantile=0.5, devices=CLIENTS)
RUNS = {
    "clipped": ("feddrop", CLIPPED),
    "central": ("fedavg", Privacy("central", noise=0.7, clip=0.3, devices=CLIENTS)),
    "local": ("fjord", Privacy("local", noise=0.1, clip=0.3)),
}


@pytest.mark.timeout(120)
def test_two_agents_train_privately_and_the_record_says_what_it_cost(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path
) -> None:
    agents = [AgentProcess(f"client-{i}", f"digits:{i}/{CLIENTS}") for i in range(CLIENTS)]
    fleets, simulations = dict[str, RunSummary](), dict[str, RunSummary]()
    with Fleet(agents, address=embedded, root=tmp_path / "fleet", once=False):
        for name, (method, privacy) in RUNS.items():
            config: RunConfig = system.config(
                method, run=name, rounds=2, clients=CLIENTS, quorum=1.0, privacy=privacy
            )
            fleets[name] = serve(
                bundle=digits_bundle, config=config, root=tmp_path / name, address=embedded, observer=Observer()
            )
            simulations[name] = Simulation(
                bundle=digits_bundle,
                config=config,
                population=Population(CLIENTS, 1),
                trainer=TrainerSettings("runtime"),
                root=tmp_path / f"simulated-{name}",
                observer=Observer(),
            ).run()
    ours, theirs = fleets["clipped"], simulations["clipped"]
    assert same_weights(ours.weights, theirs.weights)
    assert [m.privacy for m in ours.rounds] == [m.privacy for m in theirs.rounds]
    assert ours.rounds[1].privacy is not None
    assert ours.rounds[1].privacy.clip != CLIPPED.clip  # it moved
    for name in ("central", "local"):
        privacy = RUNS[name][1]
        spent = [m.privacy for m in fleets[name].rounds]
        expected = [epsilon_of(privacy, times, 1.0) for times in (1, 2)]
        assert [one and one.epsilon for one in spent] == expected
        assert [m.train_loss for m in fleets[name].rounds] == [None, None]
        assert not any(m.clipped or m.rejections for m in fleets[name].rounds)
        assert not same_weights(fleets[name].weights, simulations[name].weights)  # its noise nobody can repeat
        last = status_of(tmp_path / name).last
        assert last is not None
        assert last.privacy == spent[-1]
        assert fleets[name].figures()["privacy"] == {"kind": name, "epsilon": expected[1], "delta": privacy.delta}
        assert any(f"epsilon {expected[1]:.3g}" in line for line in fleets[name].lines())
        assert Run.open(tmp_path / name).records()[-1]["epsilon"] == expected[1]
    shown = CliRunner().invoke(app, ["status", str(tmp_path / "central")]).stdout
    assert "epsilon" in shown
    assert len(list((tmp_path / "fleet").rglob("noise.key"))) == CLIENTS


@pytest.mark.timeout(240)
@pytest.mark.parametrize("noise", [pytest.param(0.0, marks=pytest.mark.matrix), 0.2])
def test_a_private_run_that_is_killed_goes_on_with_its_clip_and_its_cost(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path, noise: float
) -> None:
    privacy = Privacy("central", noise=noise, clip=0.3, quantile=0.5, devices=3)
    config: RunConfig = system.config(rounds=3, quorum=1.0, privacy=privacy)
    quiet = system.run(config, system.agents(), embedded) if not noise else None
    root, rng = tmp_path / "killed", random.Random(5)
    with system.fleet(system.agents(), embedded) as fleet:
        for _ in range(2):
            code = coordinator_ends_with(digits_bundle.root, config, root, embedded, rng.randint(5, 40))
            assert code == -signal.SIGKILL
        assert coordinator_ends_with(digits_bundle.root, config, root, embedded, None) == 0
        fleet.wait(timeout=120)
    ended = metrics_of(root)
    assert [m.round for m in ended] == [1, 2, 3]
    epsilons = [m.privacy and m.privacy.epsilon for m in ended]
    assert epsilons == [epsilon_of(privacy, times, 1.0) for times in (1, 2, 3)]
    if quiet is not None:
        assert same_weights(quiet.weights, root / "weights.safetensors")
        assert [m.privacy for m in ended] == [m.privacy for m in quiet.rounds]


class _Interrupted(Observer):
    def round_closed(self, metrics: RoundMetrics) -> None:
        if metrics.round == 2:
            raise KeyboardInterrupt


def test_a_private_simulation_repeats_itself_and_goes_on_where_it_was(
    system, digits_bundle: Bundle, tmp_path: Path
) -> None:
    privacy = Privacy("central", epsilon=30.0, delta=1e-3, clip=0.3, quantile=0.5)
    config = system.config(rounds=4, clients=12, seed=3, privacy=privacy)

    def simulation(root: Path, observer: Observer) -> Simulation:
        return Simulation(
            bundle=digits_bundle,
            config=config,
            population=Population(20),
            trainer=TrainerSettings("runtime"),
            root=root,
            observer=observer,
        )

    whole = simulation(tmp_path / "whole", Observer()).run()
    with pytest.raises(KeyboardInterrupt):
        simulation(tmp_path / "broken", _Interrupted()).run()
    resumed = Simulation.resume(tmp_path / "broken", observer=Observer()).run()
    assert load_file(whole.weights).keys() == load_file(resumed.weights).keys()
    assert same_weights(whole.weights, resumed.weights)
    assert [m.privacy for m in whole.rounds] == [m.privacy for m in resumed.rounds]
    assert len({len(m.uplink) for m in whole.rounds}) > 1  # devices are drawn one by one
    last = whole.rounds[-1].privacy
    assert last is not None
    assert last.epsilon == pytest.approx(30.0, rel=0.02)
