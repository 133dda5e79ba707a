"""The virtual time of a simulation: its frames over the link, and local training timed here."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.grid import Choice, entry
from benchmarks.runs import bundle_of
from broker.observer import Observer
from device_sim.simulation.local_time import a_step
from device_sim.simulation.settings import TrainerSettings
from device_sim.simulation.simulate import Simulation
from device_sim.simulation.virtual_time import virtual_clock
from edge_fl.core.errors import ConfigError


def test_a_run_takes_its_frames_and_its_training(
    tiny: Callable[..., Choice], bundles: Path, tmp_path: Path
) -> None:
    run = entry(tiny(rounds=2), "digits", "fjord", {}).runs[0]
    simulation = Simulation(
        bundle=bundle_of(run, bundles, str),
        config=run.config(),
        population=run.population(),
        trainer=TrainerSettings("stacked"),
        root=tmp_path / "run",
        observer=Observer(),
    )
    summary = simulation.run()

    moved = sum(max(m.downlink.values()) / 8e6 + max(m.uplink.values()) / 2e6 for m in summary.rounds) * 8
    seconds = virtual_clock("8/2", "1e-9")(simulation, summary)
    assert seconds == pytest.approx(moved, rel=1e-3)
    slow = virtual_clock("8/2", "1000,2000")(simulation, summary) - moved
    assert slow > 2 * 1000 * run.local_steps * 1e-5  # no step takes less than 10 us


def test_what_a_round_does_besides_its_steps_counts_once() -> None:
    assert a_step({7: 1.4}, 7) == pytest.approx(0.2)
    besides, step = 0.5, 0.1
    rounds = {steps: besides + steps * step for steps in (30, 60)}
    assert a_step(rounds, 240) == pytest.approx((besides + 240 * step) / 240)


def test_a_link_and_slowdowns_are_read_at_once() -> None:
    for link, slowdowns, sentence in (
        ("6g", "1", "no link '6g'"),
        ("5g", "fast", "--slowdown takes factors"),
        ("5g", "1,0", "factors above 0"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            virtual_clock(link, slowdowns)
