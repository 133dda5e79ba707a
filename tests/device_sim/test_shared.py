"""What a compressor's server half shares with the model: TCS's global mask, in runs of three rounds."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from broker.observer import Observer
from broker.summary import RunSummary
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.runs.config import RunConfig

PICKED = 3


def run(bundle: Bundle, root: Path, method: str, trainer: TrainerSettings) -> RunSummary:
    config = RunConfig(
        run="test",
        method=method,
        parameters={"tcs.global_ratio": 0.1, "tcs.local_ratio": 0.01, "server.momentum": 0.5},
        rounds=3,
        clients_per_round=PICKED,
        local_steps=2,
        batch=20,
        lr=0.1,
        seed=1,
    )
    return Simulation(
        bundle=bundle,
        config=config,
        population=Population(5),
        trainer=trainer,
        root=root,
        observer=Observer(),
    ).run()


@pytest.mark.parametrize("kind", ["runtime", "stacked"])
@pytest.mark.parametrize("method", ["fedavg+tcs", "fedbiad+tcs"])
def test_the_mask_goes_down_with_the_model_and_its_entries_come_up(
    torch_bundle: Bundle, tmp_path: Path, method: str, kind: str
) -> None:
    trainer = (
        TrainerSettings("stacked") if kind == "stacked" else TrainerSettings("runtime", runtime="torch_eager")
    )
    summary = run(torch_bundle, tmp_path, method, trainer)
    first, second, third = summary.rounds
    entries = sum(t.size for t in torch_bundle.layout.parameters)
    one, two, three = (sum(metrics.downlink.values()) for metrics in summary.rounds)
    assert one == PICKED * summary.dense
    mask = (two - one) / PICKED
    assert 0.4 * entries / 8 < mask < 0.6 * entries / 8  # a tenth of the entries at 4.7 bits, without their values
    assert abs(three - two) < PICKED * 0.02 * mask + 8 * PICKED
    for later in (second, third):
        for size in later.uplink.values():
            values = size - max(first.uplink.values())  # of a local mask alone
            assert 4 * 0.01 * entries < values <= 4 * 0.1 * entries + 8
    start, end = torch_bundle.weights(), load_file(summary.weights)
    assert any((start[name] != end[name]).any() for name in start)


def test_tcs_alone_is_fedavg_with_tcs(torch_bundle: Bundle, tmp_path: Path) -> None:
    one, other = (
        run(torch_bundle, tmp_path / name, name, TrainerSettings("stacked")) for name in ("tcs", "fedavg+tcs")
    )
    weights = [load_file(summary.weights) for summary in (one, other)]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert [m.uplink for m in one.rounds] == [m.uplink for m in other.rounds]
