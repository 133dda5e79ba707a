"""The stacked trainer against the runtime one, client by client, for models, methods and optimisers of every kind."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from broker.config import RunConfig
from broker.observer import Observer
from device_sim.settings import Population, TrainerSettings
from device_sim.simulate import Simulation
from edge_fl.bundle import Bundle
from edge_fl.methods.base import method_names

RUNTIME = TrainerSettings("runtime", "torch_eager")


def trained(bundle: Bundle, root: Path, trainer: TrainerSettings, **more) -> dict[str, np.ndarray]:
    settings = {"method": "fedavg", "parameters": {}, "rounds": 1, "clients_per_round": 7, "local_steps": 9}
    config = RunConfig(run="test", batch=20, lr=0.1, seed=3, **{**settings, **more})
    simulation = Simulation(
        bundle=bundle,
        config=config,
        population=Population(9, tiers=2),
        trainer=trainer,
        root=root,
        observer=Observer(),
    )
    return load_file(simulation.run().weights)


def assert_close(one: dict[str, np.ndarray], other: dict[str, np.ndarray], within: float = 1e-5) -> None:
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, rtol=0, atol=within, err_msg=name)


@pytest.mark.parametrize("method", method_names())
def test_a_round_of_every_method_is_that_of_the_runtime(
    digits_bundle: Bundle, tmp_path: Path, method: str
) -> None:
    expected = trained(digits_bundle, tmp_path / "runtime", RUNTIME, method=method)
    assert_close(expected, trained(digits_bundle, tmp_path / "stacked", TrainerSettings(), method=method))
    assert any(np.abs(expected[name] - array).max() > 1e-3 for name, array in digits_bundle.weights().items())
