"""Whatever breaks, a run ends, and with the weights of a quiet one (which are a fleet's: test_simulation.py)."""

from pathlib import Path

import pytest

from device_sim.emulation.chaos import Chaos, same_weights
from edge_fl.core.bundle import Bundle

ROUNDS = 12  # something happens every second round


@pytest.mark.parametrize(
    "broker", [pytest.param("mosquitto", marks=(pytest.mark.mosquitto, pytest.mark.matrix)), "embedded"]
)
def test_a_run_that_everything_happens_to_ends_with_the_weights_of_a_quiet_one(
    digits_bundle: Bundle, tmp_path: Path, broker: str
) -> None:
    chaos = Chaos(rounds=ROUNDS, broker=broker, seed=3, minutes=4)
    disturbed = chaos.run(digits_bundle, tmp_path / "chaos")
    assert [metrics.round for metrics in disturbed.rounds] == list(range(1, ROUNDS + 1))
    assert all(len(metrics.uplink) == chaos.devices for metrics in disturbed.rounds)
    kinds = 5 if broker == "mosquitto" else 4
    assert len(disturbed.happened) == kinds, "not everything happened"
    assert same_weights(chaos.quiet(digits_bundle, tmp_path / "quiet"), disturbed.weights)
