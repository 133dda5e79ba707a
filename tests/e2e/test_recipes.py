"""Every method and compressor through real agents over a broker, against a simulation: the same bits."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from broker.observer import Observer
from broker.session import serve
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.compressors.base import compressor_names
from edge_fl.core.bundle import Bundle
from edge_fl.methods.base import method_names
from edge_fl.runs.config import RunConfig
from edge_fl.transport.address import BrokerAddress

CLIENTS, TIERS = 4, 2
# A compressor's way through the system does not depend on the method, nor a method's on the compressor.
RECIPES = [
    *method_names(),
    *(f"fedbiad+{name}" for name in compressor_names()),
    "fjord+kd+dgc",
    "heterofl+fedpaq",
    "fedavg+signsgd",
    "tcs",
]
PARAMETERS = {
    "fedavg+signsgd": {"signsgd.step": 0.01},  # the vote
    "vardrop": {"threshold": -4.0},  # some weights are dropped from the first round on
}
RUNS = [
    *((recipe, PARAMETERS.get(recipe, {})) for recipe in RECIPES),
    ("fedmp", {"ratio": "bandit"}),  # which goes by measured times from the third round on
]


@pytest.mark.timeout(180)
def test_a_fleet_and_a_simulation_give_the_same_bits_for_every_recipe(
    system, digits_bundle: Bundle, adapter_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path
) -> None:
    agents = [AgentProcess(f"client-{i}", f"digits:{i}/{CLIENTS}", tier=i % TIERS) for i in range(CLIENTS)]
    with Fleet(agents, address=embedded, root=tmp_path / "fleet", once=False):
        for number, (recipe, parameters) in enumerate(RUNS):
            config = system.config(recipe, run=f"run-{number}", rounds=2, clients=CLIENTS, parameters=parameters)
            bundle = adapter_bundle if recipe in ("hetlora", "flexlora") else digits_bundle
            fleet = serve(
                bundle=bundle,
                config=config,
                root=tmp_path / f"run-{number}",
                address=embedded,
                observer=Observer(),
            )
            simulated = Simulation(
                bundle=bundle,
                config=config,
                population=Population(CLIENTS, TIERS),
                trainer=TrainerSettings("runtime"),
                root=tmp_path / f"simulated-{number}",
                observer=Observer(),
            ).run()
            assert [m.uplink for m in fleet.rounds] == [m.uplink for m in simulated.rounds], recipe
            assert fleet.rounds[1].downlink == simulated.rounds[1].downlink, recipe  # the first has programs, too
            assert not any(m.rejections for m in fleet.rounds), recipe
            one, other = load_file(fleet.weights), load_file(simulated.weights)
            assert all(one[name].tobytes() == other[name].tobytes() for name in one), recipe
            start = bundle.weights()
            assert any(one[name].tobytes() != start[name].tobytes() for name in one), recipe


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_exact_sums_of_a_fleet_are_those_of_any_number_of_workers(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path
) -> None:
    """Rows, units, sparse updates, widths and a compressor; within 1e-6 of sums of floats."""
    recipes = ("fedbiad", "fjord", "vardrop", "heterofl", "fedavg+dgc")
    agents = [AgentProcess(f"client-{i}", f"digits:{i}/{CLIENTS}", tier=i % TIERS) for i in range(CLIENTS)]
    with Fleet(agents, address=embedded, root=tmp_path / "fleet", once=False):
        for number, recipe in enumerate(recipes):
            config = system.config(recipe, run=f"run-{number}", rounds=2, clients=CLIENTS, exact_sums=True)
            fleet = serve(
                bundle=digits_bundle,
                config=config,
                root=tmp_path / f"run-{number}",
                address=embedded,
                observer=Observer(),
            )
            one = load_file(fleet.weights)
            for workers in (1, 2, 7):
                other = _simulated(digits_bundle, config, tmp_path / f"{number}-{workers}", workers)
                assert all(one[name].tobytes() == other[name].tobytes() for name in one), (recipe, workers)
            plain = msgspec.structs.replace(config, exact_sums=False, rounds=1)
            whole = msgspec.structs.replace(plain, exact_sums=True)
            start = digits_bundle.weights()
            moved = [
                _simulated(digits_bundle, each, tmp_path / f"{number}-{each.exact_sums}", 1)
                for each in (plain, whole)
            ]
            largest = max(float(np.abs(moved[0][name] - start[name]).max()) for name in start)
            apart = max(float(np.abs(moved[0][name] - moved[1][name]).max()) for name in start)
            assert apart <= 1e-6 * largest, recipe


def _simulated(bundle: Bundle, config: RunConfig, root: Path, workers: int) -> dict[str, NDArray[np.float32]]:
    summary = Simulation(
        bundle=bundle,
        config=config,
        population=Population(CLIENTS, TIERS),
        trainer=TrainerSettings("runtime", processes=workers),
        root=root,
        observer=Observer(),
    ).run()
    return load_file(summary.weights)
