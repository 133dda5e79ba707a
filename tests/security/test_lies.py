"""One admitted device of six that lies about what it trained: real processes, over TLS, on both brokers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_fl.core.bundle import Bundle
from tests.security import rogue_agent
from tests.security.conftest import ServedFleet, embedded_in
from tests.security.test_fleet import edge_fl, same, weights

HONEST = [f"honest-{i}" for i in range(5)]
TRAINING = ["--rounds=3", "--local-steps=100", "--lr=0.3", "--seed=3", "--deadline=120", "--wait=120"]


def trained(fleet: ServedFleet, bundle: Bundle, names: list[str], lie: str = "", *options: str) -> float:
    """The accuracy of a run in which ``rogue`` lies, if it is there; what is left is in the fleet's folder."""
    folder, identities = fleet.folder, fleet.devices(*names)
    count = len(identities)
    coordinator = edge_fl(
        *(
            "serve",
            bundle.root,
            *fleet.serve,
            *TRAINING,
            *options,
            f"--clients-per-round={count}",
            f"--min-clients={count}",
            "-o",
            "run",
            "--json",
        ),
        folder=folder,
    )
    started = [coordinator]
    for number, (name, identity) in enumerate(identities.items()):
        own = ["--data", f"digits:{number}/6", "--state", f"state-{name}", "--once", "--connect-timeout", "120"]
        words = [*own, *map(str, identity)]
        if name == "rogue":
            program = [sys.executable, rogue_agent.__file__, lie, *words]
            pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            started.append(subprocess.Popen(program, cwd=folder, text=True, **pipes))  # type: ignore[call-overload]
        else:
            started.append(edge_fl("device", *words, folder=folder))
    try:
        printed = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), printed
    return float(json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])["scores"]["accuracy"])


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, digits_bundle: Bundle) -> tuple[float, dict[str, np.ndarray]]:
    """Accuracy and weights of the five alone."""
    fleet = embedded_in(tmp_path_factory.mktemp("honest"))
    return trained(fleet, digits_bundle, HONEST), weights(fleet.folder)


def clipped(folder: Path) -> int:
    """In how many rounds `edge-fl status` says that the rogue's update did not count in full."""
    status = json.loads(edge_fl("status", "run", "--json", folder=folder).communicate(timeout=60)[0])
    return int({device["client"]: device["clipped"] for device in status["devices"]}["rogue"])


@pytest.mark.parametrize(
    "lie",
    [pytest.param("999", marks=pytest.mark.matrix), pytest.param("tenth", marks=pytest.mark.matrix), "boast"],
)
def test_a_lie(
    served: ServedFleet, digits_bundle: Bundle, honest: tuple[float, dict[str, np.ndarray]], lie: str
) -> None:
    accuracy = trained(served, digits_bundle, [*HONEST, "rogue"], lie)
    if lie == "999":
        assert same(weights(served.folder), honest[1])  # it was left out, to the bit
    assert accuracy > honest[0] - 0.05
    assert clipped(served.folder) == {"999": 2, "tenth": 0, "boast": 0}[lie], accuracy  # and then it rested


def test_a_round_that_ruins_the_model_is_made_again_without_who_did_it(
    tmp_path: Path, digits_bundle: Bundle, honest: tuple[float, dict[str, np.ndarray]]
) -> None:
    fleet, options = embedded_in(tmp_path), ("--rounds=5", "--norm-bound=0")
    accuracy = trained(fleet, digits_bundle, [*HONEST, "rogue"], "late", *options)
    assert accuracy > honest[0] - 0.02
    rounds = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [metrics.get("clipped", {}) for metrics in rounds] == [{}, {}, {}, {"rogue": 0.0}, {"rogue": 0.0}]
