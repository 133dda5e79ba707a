"""The virtual time of a simulation: its frames over the link, and local training timed here."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.grid import Choice, entry
from benchmarks.runs import bundle_of
from broker.observer import Observer
from broker.summary import RunSummary
from device_sim.simulation.local_time import a_step
from device_sim.simulation.settings import TrainerSettings, World
from device_sim.simulation.simulate import Simulation


def test_a_run_takes_its_frames_and_its_training(
    tiny: Callable[..., Choice], bundles: Path, tmp_path: Path
) -> None:
    run = entry(tiny(rounds=2), "digits", "fjord", {}).runs[0]

    def simulated(name: str, world: World) -> RunSummary:
        return Simulation(
            bundle=bundle_of(run, bundles, str),
            config=run.config(),
            population=run.population(),
            trainer=TrainerSettings("stacked"),
            root=tmp_path / name,
            observer=Observer(),
            world=world,
        ).run()

    for metrics in simulated("moved", World("8/2", steps=(1e-12,))).rounds:
        moved = max(metrics.downlink.values()) / 1e6 + max(metrics.uplink.values()) * 4e-6
        assert metrics.seconds == pytest.approx(moved, rel=1e-3)
    measured = simulated("measured", World("8000/2000", slowdowns=(1000.0, 2000.0))).rounds
    assert (
        sum(metrics.seconds for metrics in measured) > 2 * 1000 * run.local_steps * 1e-5
    )  # no step takes < 10 us


def test_what_a_round_does_besides_its_steps_counts_once() -> None:
    assert a_step({7: 1.4}, 7) == pytest.approx(0.2)
    besides, step = 0.5, 0.1
    rounds = {steps: besides + steps * step for steps in (30, 60)}
    assert a_step(rounds, 240) == pytest.approx((besides + 240 * step) / 240)
