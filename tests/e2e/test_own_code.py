"""A method, a compressor, a source and a score in a folder of one's own, in a real fleet."""

import json
import subprocess
import sys
import time
from pathlib import Path

from edge_fl.core.bundle import Bundle

MINE = """
import numpy as np

from edge_fl.compressors.topk import COMPRESSOR as TopK
from edge_fl.data.registry import load_dataset
from edge_fl.data.sources.base import DataSource
from edge_fl.methods.feddrop import METHOD as FedDrop
from edge_fl.metrics.classification import TopK as Right


class Mine(FedDrop):
    name = "mine"


class Few(TopK):
    name = "few"


class Digits(DataSource):
    def __init__(self, argument):
        part = int(argument)
        train = load_dataset("digits").train
        self._samples = train.take(np.arange(part, len(train.y), 3))

    def samples(self):
        return self._samples


class Wrong(Right):
    def __init__(self):
        super().__init__(1)
        self.name = "wrong"

    name = "wrong"

    def value(self, sums):
        return 1 - super().value(sums)
"""


def test_own_code_runs_in_a_fleet_and_a_device_without_it_says_so(tmp_path: Path, digits_bundle: Bundle) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    serve = [
        *(sys.executable, "-m", "edge_fl", "serve", str(digits_bundle.root), "--port", "0", "-o", "run"),
        *("--method", "mine.py:Mine+mine.py:Few", "--dropout", "0.5", "--score", "mine.py:Wrong", "--rounds", "2"),
        *("--clients-per-round", "4", "--quorum", "0.75", "--evaluate-on", "3", "--local-steps", "3"),
    ]
    log = (tmp_path / "serve.log").open("w+")
    coordinator = subprocess.Popen(serve, cwd=tmp_path, stderr=log, stdout=subprocess.PIPE, text=True)
    devices = []
    try:
        address = broker_of(tmp_path / "serve.log", coordinator)
        for i in range(4):
            own = [f"--method=mine.py:{name}" for name in ("Mine", "Few", "Wrong")] if i < 3 else []
            data = f"mine.py:Digits:{i}" if i < 3 else "digits"
            words = ["--broker", address, "--data", data, "--id", f"device-{i}", "--state", f"state-{i}", "--once"]
            words += ["--test-share", "0.2", *own]
            devices.append(subprocess.Popen([sys.executable, "-m", "edge_fl", "device", *words], cwd=tmp_path))
        coordinator.wait(timeout=200)
        assert coordinator.returncode == 0, (tmp_path / "serve.log").read_text()
        for device in devices:
            assert device.wait(timeout=60) == 0
    finally:
        for process in (coordinator, *devices):
            process.kill()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert sorted(line["uplink"]) == ["device-0", "device-1", "device-2"]
        assert "no method 'mine'" in line["excused"]["device-3"]
        assert 0 <= line["scores"]["wrong"] <= 1
    found = [line["on_devices"] for line in lines if line["on_devices"]]
    assert found
    assert all("wrong" in tier["scores"] for each in found for tier in each.values())
    assert (tmp_path / "run" / "plot.png").stat().st_size > 10_000
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["method"] == "mine+few"


def broker_of(log: Path, coordinator: subprocess.Popen[str]) -> str:
    """The address that the coordinator says it listens on."""
    limit = time.monotonic() + 60
    while "broker mqtt://" not in log.read_text():
        assert coordinator.poll() is None, log.read_text()
        assert time.monotonic() < limit
        time.sleep(0.05)
    return log.read_text().split("broker ", 1)[1].split()[0]
