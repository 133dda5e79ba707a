"""A client whose training goes too far fails."""

from pathlib import Path

import pytest

from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import RunError
from edge_fl.runs.config import RunConfig


@pytest.mark.parametrize("trainer", ["runtime", "stacked"])
def test_training_that_goes_too_far_with_finite_numbers_fails(
    digits_bundle: Bundle, tmp_path: Path, trainer: str
) -> None:
    """A single step, whose loss is that of the model before it."""
    config = RunConfig(
        run="r",
        method="fedavg",
        parameters={},
        rounds=1,
        clients_per_round=2,
        local_steps=1,
        batch=20,
        lr=1e6,
        seed=0,
    )
    simulation = Simulation(
        bundle=digits_bundle,
        config=config,
        population=Population(4),
        trainer=TrainerSettings(trainer),
        root=tmp_path / "run",
        observer=Observer(),
    )
    said = r"The training of client 'client-\d' changed '\S+' by \S+e\+\d\d; lower the step size\."
    with pytest.raises(RunError, match=said):
        simulation.run()
