"""How far one client may move a model, and that one who goes further fails alone or is refused."""

from pathlib import Path

import numpy as np
import pytest

from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.divergence import farthest, max_change
from edge_fl.core.errors import RunError
from edge_fl.core.layout import Block, Layout, Segment, Tensor
from edge_fl.runs.config import RunConfig

UNITS = ((Segment("b"),),)
LAYOUT = Layout(
    (Block("b", 3),),
    (
        Tensor("w", (3,), rows=UNITS, units=UNITS),
        Tensor("v", (3,), rows=UNITS, units=UNITS),
        Tensor("var", (3,), rows=UNITS, units=UNITS, role="statistic"),
    ),
)


def of(w: list[float], v: list[float], var: float = 0.0) -> dict[str, np.ndarray]:
    return {"w": np.float32(w), "v": np.float32(v), "var": np.full(3, var, np.float32)}


def test_it_goes_by_the_largest_parameter_whatever_the_statistics_are() -> None:
    assert max_change(LAYOUT, of([0, -0.5, 0], [0.1, 0, 0], var=1e9)) == 1000
    assert max_change(LAYOUT, of([0, -4, 0], [3, 0, 0])) == 4000
    assert farthest(LAYOUT, of([1, 2, 3], [0, -7, 6], var=1e9)) == ("v", 7.0)
    nothing = {"w": np.zeros(0, np.float32), "v": np.float32([2]), "var": np.zeros(0, np.float32)}
    assert farthest(LAYOUT, nothing) == ("v", 2.0)


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
