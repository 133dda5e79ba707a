from pathlib import Path

import pytest
import torch

from benchmarks.transfer import Line, transfer
from device_sim.emulation.mosquitto import mosquitto_program
from edge_fl.core.content import CHUNK_SIZE
from edge_fl.core.inputs import Input
from exporter.export import Target, export_bundle
from exporter.zoo.mlp import mlp

DEVICES = 3


@pytest.mark.matrix
@pytest.mark.mosquitto
@pytest.mark.skipif(mosquitto_program() is None, reason="mosquitto is not installed")
def test_what_has_come_before_the_broker_dies_is_not_sent_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    target = Target("wide", "digits", Input((1, 8, 8), "float32"), classes=10, runtimes=("onnx",))
    bundle = export_bundle(mlp(inputs=64, hidden=1200, classes=10), target, tmp_path / "bundle")
    line = Line(down=24.0, up=48.0, loss=0.0, latency=0.01)

    moved = transfer(bundle, DEVICES, line, tmp_path, lambda _: None)

    assert moved.model > 20 * CHUNK_SIZE  # more than are on their way at a time
    assert moved.seconds > line.floor(moved.model, moved.update)
    assert list(moved.accepted.values()) == [1] * DEVICES
    for device in moved.down:
        again = moved.down[device] - moved.model
        assert 0 < again < 0.75 * moved.model  # what the broker held when it died, which has no more than a window
        assert moved.up[device] == moved.update
