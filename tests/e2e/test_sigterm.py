"""SIGTERM ends a command as Ctrl-C does: it says how to go on, takes its processes along, and a device says goodbye."""

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from broker.observer import Observer
from edge_fl.core.bundle import Bundle
from edge_fl.transport.address import BrokerAddress

COMMAND = [sys.executable, "-m", "edge_fl"]


def until(done: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 120
    while not done():
        assert process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.05)


def started(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_simulation_says_how_to_go_on(digits_bundle: Bundle, tmp_path: Path) -> None:
    root = tmp_path / "run"
    process = started("simulate", str(digits_bundle.root), "--rounds=100000", "--clients=10", f"--output={root}")
    metrics = root / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.stat().st_size > 0, process)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert f"Continue it with: edge-fl simulate --resume {root}" in said
    assert "Traceback" not in said


def test_a_coordinator_says_how_to_go_on(digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path) -> None:
    root = tmp_path / "run"
    process = started(
        "serve", str(digits_bundle.root), f"--broker={embedded}", "--wait=100", "--log-level=warning", f"-o{root}"
    )
    until((root / "metrics.jsonl").exists, process)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert f"Continue it with: edge-fl serve --resume {root} --broker {embedded} --log-level warning" in said


class Watching(Observer):
    def __init__(self) -> None:
        self.seen: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def registered(self, client: str, profile: object) -> None:
        del profile
        self.seen.put((client, "registered"))

    def device(self, client: str, status: str) -> None:
        self.seen.put((client, status))


def test_a_device_that_is_stopped_is_known_to_be_gone(system, embedded: BrokerAddress, tmp_path: Path) -> None:
    watching, root = Watching(), tmp_path / "run"
    config = system.config(rounds=1, clients=2, wait=100.0)
    coordinator = threading.Thread(target=lambda: system.coordinate(config, root, embedded, watching), daemon=True)
    coordinator.start()
    state = tmp_path / "state"
    device = started("device", f"--broker={embedded}", "--id=client-0", "--data=digits:0/2", f"--state={state}")
    assert watching.seen.get(timeout=120) == ("client-0", "registered")
    device.terminate()
    device.communicate(timeout=60)
    assert device.returncode == -signal.SIGTERM
    assert watching.seen.get(timeout=30) == ("client-0", "gone")
    with system.fleet(system.agents(2), embedded):  # lets the coordinator end
        coordinator.join(120)
    assert not coordinator.is_alive()


def children_of(process: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process and fields[0] != "Z":
            found.append(int(entry.parent.name))
    return found


def test_an_emulated_fleet_takes_its_agents_along(embedded: BrokerAddress, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("data: digits\nscale: 50\ndevices:\n  - profile: raspberry-pi-5\n    count: 2\n")
    process = started("fleet", str(file), f"--broker={embedded}", f"--output={tmp_path / 'fleet'}")
    until(lambda: len(children_of(process.pid)) >= 2, process)
    agents = children_of(process.pid)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert not [agent for agent in agents if Path(f"/proc/{agent}").exists()]
