"""What a fleet's traffic is beside its frames."""

from pathlib import Path

import pytest

from benchmarks.wire import WireSetting, bench_wire
from device_sim.emulation.mosquitto import mosquitto_program
from edge_fl.core.errors import ConfigError


@pytest.mark.skipif(mosquitto_program() is None, reason="mosquitto is not installed")
def test_what_goes_up_is_a_frame_and_some_hundred_bytes(bundles: Path) -> None:
    setting = WireSetting("digits-mlp", devices=2, rounds=4, methods=("fedavg", "fedavg+topk topk.ratio=0.01"))
    result = bench_wire(setting, bundles, str)

    dense, sparse = result.rows
    for row in result.rows:
        frame, up, _, down = (int(str(row[name]).replace(",", "")) for name in list(row)[1:5])
        assert frame + 100 < up < frame + 1500
        assert 14_000 < down < 18_000  # the model, whatever goes up
    assert int(str(sparse["frame (bytes)"])) < 500
    assert int(str(dense["frame (bytes)"]).replace(",", "")) > 14_000
    assert "--method 'fedavg+topk topk.ratio=0.01'" in result.command


@pytest.mark.parametrize(("devices", "rounds"), [(0, 8), (2, 2)])
def test_too_little_to_measure_is_refused(devices: int, rounds: int) -> None:
    with pytest.raises(ConfigError, match="more than 2 rounds"):
        WireSetting("digits-mlp", devices, rounds)
