"""Secure aggregation with two admitted devices that lie in it: real processes, over TLS, on both brokers.

One gives wrong shares, which the others' make up for. One gives keys without a signature, and later a masked update of
another size; it is done without, at once. The sums have the bits of a run without the latter, and an honest former.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from device_sim.emulation.mosquitto import free_port
from edge_fl.core.bundle import Bundle
from tests.security import rogue_agent
from tests.security.conftest import ServedFleet
from tests.security.test_fleet import RUN, edge_fl, same, weights

LIES = {"milk": "shares", "rogue": "keys"}
SECURE = ["--secure-aggregation", "--secure-holders=2", "--secure-threshold=0.6"]
SECURE += ["--deadline=10000"]  # for which no round waits: the test would run out of time


def summed(
    folder: Path, serve: list[str | Path], devices: dict[str, list[str | Path]], lies: dict[str, str]
) -> str:
    """What the coordinator of a run prints in which these devices lie."""
    count = len(devices)
    many = [f"--clients-per-round={count}", f"--min-clients={count}"]
    processes = [edge_fl("serve", *serve, *RUN, *SECURE, *many, "-o", "run", folder=folder)]
    for number, (name, words) in enumerate(devices.items()):
        own = ["--data", f"digits:{number}/4", "--state", f"state-{name}", "--once", "--connect-timeout", "120"]
        if name not in lies:
            processes.append(edge_fl("device", *own, *words, folder=folder))
            continue
        program = [sys.executable, rogue_agent.__file__, lies[name], *own, *map(str, words)]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes.append(subprocess.Popen(program, cwd=folder, text=True, **pipes))  # type: ignore[call-overload]
    try:
        printed = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), printed
    return printed[0]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, digits_bundle: Bundle) -> dict[str, np.ndarray]:
    folder, port = tmp_path_factory.mktemp("honest"), free_port()
    names = ("tea", "coffee", "milk")
    devices: dict[str, list[str | Path]] = {
        name: ["--broker", f"mqtt://127.0.0.1:{port}", "--id", name] for name in names
    }
    summed(folder, [digits_bundle.root, "--port", str(port)], devices, {})
    return weights(folder)


@pytest.mark.matrix
def test_lies_in_secure_aggregation(
    served: ServedFleet, digits_bundle: Bundle, honest: dict[str, np.ndarray]
) -> None:
    folder, devices = served.folder, served.devices("tea", "coffee", "milk", "rogue")
    printed = summed(folder, [digits_bundle.root, *served.serve], devices, LIES)
    assert "rejected milk (share" in printed
    status = json.loads(edge_fl("status", "run", "--json", folder=folder).communicate(timeout=60)[0])
    counted = {(refused["round"], refused["client"], refused["code"]) for refused in status["rejected"]}
    assert (1, "milk", "share") in counted
    assert {("rogue", "certificate"), ("rogue", "values")} <= {refused[1:] for refused in counted}
    assert {client for _, client, _ in counted} <= {"rogue", "milk", ""}
    rounds = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [sorted(one["uplink"]) for one in rounds] == [["coffee", "milk", "tea"]] * 2
    assert same(weights(folder), honest)
