"""BatchNorm statistics that travel in some rounds alone."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from broker.observer import Observer
from broker.summary import RunSummary
from device_sim.emulation.agent_processes import AgentProcess
from device_sim.emulation.chaos import same_weights
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.runs.config import RunConfig
from edge_fl.transport.address import BrokerAddress
from tests.e2e.conftest import System
from tests.e2e.test_collected_statistics import single
from tests.exporter.test_per_width import STATISTICS

__all__ = ["single"]  # a fixture

CLIENTS = 3


def simulated(bundle: Bundle, config: RunConfig, root: Path) -> RunSummary:
    return Simulation(
        bundle=bundle,
        config=config,
        population=Population(CLIENTS),
        trainer=TrainerSettings("runtime"),
        root=root,
        observer=Observer(),
    ).run()


@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedavg+tcs", marks=pytest.mark.matrix)])
def test_the_model_keeps_its_statistics_until_updates_hold_some(
    single: Bundle, embedded: BrokerAddress, tmp_path: Path, method: str
) -> None:
    system = System(single, tmp_path)
    settings = system.config(method, rounds=3, quorum=1.0, statistics_every=2)
    run = simulated(single, settings, tmp_path / "simulated")

    agents = [
        AgentProcess(f"client-{i}", f"digits:{i}/{CLIENTS}", runtime="onnx", in_process=True)
        for i in range(CLIENTS)
    ]
    fleet = system.run(settings, agents, embedded)
    assert same_weights(fleet.weights, run.weights)
    assert not fleet.rounds[0].rejections

    silent = load_file(fleet.weights.parent / "checkpoints" / "00001.safetensors")
    start = single.weights()
    assert all(np.array_equal(silent[name], start[name]) for name in STATISTICS)
    assert not all(np.array_equal(silent[name], start[name]) for name in start)

    size = sum(4 * single.layout.tensor(name).size for name in STATISTICS)
    without, *others = (sum(metrics.uplink.values()) / CLIENTS for metrics in run.rounds)
    if method == "fedavg":
        assert [sent - without for sent in others] == pytest.approx([size, size], abs=16)  # the header says so


def test_statistics_are_those_of_the_rounds_that_send_them(single: Bundle, tmp_path: Path) -> None:
    """One round without leaves them as they were; what is trained is the same."""
    system = System(single, tmp_path)
    start = single.weights()
    never = simulated(single, system.config(rounds=2, statistics_every=5), tmp_path / "never")
    always = simulated(single, system.config(rounds=2), tmp_path / "always")
    ended, whole = load_file(never.weights), load_file(always.weights)
    for name in ended.keys() - set(STATISTICS):
        assert np.array_equal(ended[name], whole[name])
    for name in STATISTICS:
        assert not np.array_equal(ended[name], start[name])  # the last round sends them
        assert not np.array_equal(ended[name], whole[name])
