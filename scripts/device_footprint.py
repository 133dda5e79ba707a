"""Install the device extra in an empty environment, train there, and say what it takes.

Run from a checkout, in an environment with `edge-fl[all]`::

    python scripts/device_footprint.py [--data NAME] [--runtime onnx|executorch] [--json]
"""

import argparse
import json
import os
import subprocess
import tempfile
import venv
from pathlib import Path

import torch

from broker.embedded import EmbeddedBroker
from broker.observer import Observer
from broker.session import serve
from edge_fl.data.registry import dataset_info
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.runtimes._executorch.build import EXECUTORCH
from exporter.export import Target, export_bundle
from exporter.zoo import build

ROOT = Path(__file__).parents[1]
INSTALLERS = ("pip", "setuptools", "pkg_resources", "_distutils_hack")  # a device image carries none of them
ROUNDS = 5


class Memory(Observer):
    """Reads the resident memory of a process and of those that it started, after every round (Linux)."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = Path(f"/proc/{process.pid}")
        self.resident = self.peak = 0

    def round_closed(self, metrics: RoundMetrics) -> None:
        """Take a reading."""
        started = [child for task in self._process.glob("task/*/children") for child in task.read_text().split()]
        own = [self._process, *(Path("/proc", child) for child in started)]
        status = [(process / "status").read_text().splitlines() for process in own]
        fields = [dict(line.split(":", 1) for line in lines) for lines in status]
        self.resident, self.peak = (
            sum(int(each[name].split()[0]) * 1024 for each in fields) for name in ("VmRSS", "VmHWM")
        )


def install(folder: Path, runtime: str) -> dict[str, object]:
    """Make the environment; returns its packages and their size."""
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "pip"), "--disable-pip-version-check"]
    quietly = [*pip, "install", "--quiet", "-c", ROOT / "constraints.txt"]
    subprocess.run([*quietly, f"{ROOT}[device]"], check=True)
    if runtime == "executorch":  # what it declares to need is for its compiler, which stays at home
        subprocess.run([*quietly, "--no-deps", f"executorch=={EXECUTORCH}"], check=True)
    listed = subprocess.run([*pip, "list", "--format=json"], check=True, capture_output=True).stdout
    (packages,) = folder.glob("lib/python*/site-packages")
    size = sum(
        file.stat().st_size
        for file in packages.rglob("*")
        if file.is_file() and not file.relative_to(packages).parts[0].startswith(INSTALLERS)
    )
    names = sorted(p["name"] for p in json.loads(listed) if p["name"] not in INSTALLERS)
    return {"packages": names, "installed_mb": round(size / 1e6)}


def train(folder: Path, scratch: Path, data: str, runtime: str) -> dict[str, object]:
    """Train FedBIAD for a few rounds with one device in that environment."""
    info = dataset_info(data)
    torch.manual_seed(0)
    target = Target.of(info, data, (runtime,))
    bundle = export_bundle(build(f"{data}-mlp"), target, scratch / "bundle")
    settings = {"local_steps": 20, "batch": 20, "lr": 0.1, "seed": 0, "wait": 60.0}
    config = RunConfig(
        run="footprint", method="fedbiad", parameters={}, rounds=ROUNDS, clients_per_round=1, **settings
    )
    with EmbeddedBroker(port=0) as broker:
        command = [folder / "bin" / "edge-fl", "device", "--once", "--broker", str(broker.address)]
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        device = subprocess.Popen(
            [*command, "--data", f"{data}:0/10", "--state", scratch / "state", "--runtime", runtime],
            cwd=scratch,  # where this checkout's torch-importing folders are out of reach
            env=clean | {"XDG_CACHE_HOME": str(scratch / "cache")},  # nothing compiled before
        )
        try:
            memory = Memory(device)
            summary = serve(
                bundle=bundle, config=config, root=scratch / "run", address=broker.address, observer=memory
            )
            code = device.wait(30)
        finally:  # it is not to live on in an environment that is being removed
            device.kill()
            device.wait()
    return {
        "exit_code": code,
        "rounds": len(summary.rounds),
        "resident_mb": round(memory.resident / 1e6),
        "peak_mb": round(memory.peak / 1e6),
    }


def main() -> None:
    """Print the footprint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits", choices=("digits", "fashion-mnist", "mnist"))
    parser.add_argument("--runtime", default="onnx", choices=("onnx", "executorch"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "venv"
        figures = install(folder, arguments.runtime)
        figures |= train(folder, Path(scratch), arguments.data, arguments.runtime)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name}: {', '.join(value) if isinstance(value, list) else value}")


if __name__ == "__main__":
    main()
