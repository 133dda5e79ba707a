"""Train with device agents on ARM and on this machine's processor, and hold the final weights against each other.

ARM is emulated: Debian's arm64 userland under qemu's user emulation, with the `device` extra from aarch64 wheels. That
shows whether the agent and its runtime work there and compute the same; how long they take shows nothing.

Needs qemu-user-static and debootstrap. `scripts/arm-conformance` makes the rest; by hand, in an environment with
`edge-fl[all]`::

    python scripts/arm_conformance.py [--cache FOLDER] [--json]
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from arm_userland import CPU, ROOT, install, userland
from numpy.typing import NDArray
from safetensors.numpy import load_file

from broker.embedded import EmbeddedBroker
from broker.observer import Observer
from broker.session import serve
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import EdgeFLError, ParityError, RunError
from edge_fl.data.registry import dataset_info
from edge_fl.runs.config import RunConfig
from edge_fl.wire.messages import Register
from exporter.export import Target, export_bundle
from exporter.zoo import build

DATA, CLIENTS, ROUNDS = "digits", 2, 3
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedbiad": {"dropout": [500], "stage_boundary": 2},  # its last round takes rows by experience
    "feddrop": {"dropout": [500]},
}
ALLOWED = 1e-5  # of a weight, between the two processors
LEAST = 1e-2  # by which training must move a weight: weights that nobody trained are equal, too

Python = tuple[str, ...]
Weights = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Trained:
    """What the devices of a run said they are, and its final weights."""

    platform: str
    weights: Weights


@dataclass(frozen=True)
class Difference:
    """One method's final weights, trained on two ``platforms``.

    ``largest`` is how far a weight is off, ``relative`` the same over the largest weight, ``moved`` how far training
    has taken one.
    """

    method: str
    platforms: tuple[str, str]
    largest: float
    relative: float
    moved: float


class Platforms(Observer):
    """Remembers what the devices say they are."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def registered(self, client: str, profile: Register) -> None:
        """Take it down."""
        self.seen.add(profile.platform)


def differences(python: Python, scratch: Path) -> list[Difference]:
    """Train by each method, with agents in this Python and with agents in ``python``; ``scratch`` gets runs and logs.

    Raises
    ------
    RunError
        When agents fail.
    ParityError
        When weights differ by more than is allowed, or hardly moved at all.
    """
    _say("exporting the model for onnx")
    torch.manual_seed(0)
    target = Target.of(dataset_info(DATA), DATA, ("onnx",))
    bundle = export_bundle(build(f"{DATA}-mlp"), target, scratch / "bundle")
    found = []
    for method in METHODS:
        here = _train(bundle, method, (sys.executable,), scratch / method / "here")
        there = _train(bundle, method, python, scratch / method / "there")
        found.append(_compare(method, bundle.weights(), here, there))
    return found


def _train(bundle: Bundle, method: str, python: Python, root: Path) -> Trained:
    started, platforms = time.monotonic(), Platforms()
    config = RunConfig(
        run=method,
        method=method,
        parameters=METHODS[method],
        rounds=ROUNDS,
        clients_per_round=CLIENTS,
        wait=180.0,
        quorum=1.0,
        local_steps=20,
        batch=20,
        lr=0.1,
        seed=7,
    )
    agents = [
        AgentProcess(f"client-{i}", f"{DATA}:{i}/{CLIENTS}", python=python, in_process=True)
        for i in range(CLIENTS)
    ]
    with EmbeddedBroker(port=0) as broker, Fleet(agents, address=broker.address, root=root / "devices") as fleet:
        summary = serve(
            bundle=bundle, config=config, root=root / "run", address=broker.address, observer=platforms
        )
        fleet.wait(timeout=60)
    where = ", ".join(sorted(platforms.seen))
    _say(f"{method}: {CLIENTS} agents on {where}, {ROUNDS} rounds in {time.monotonic() - started:.0f} s")
    return Trained(where, load_file(summary.weights))


def _compare(method: str, start: Weights, here: Trained, there: Trained) -> Difference:
    largest, moved = _apart(here.weights, there.weights), _apart(start, there.weights)
    if not largest <= ALLOWED:  # nor where it is no number
        raise ParityError(f"The weights of {method} differ by {largest:.1e}, and {ALLOWED:.0e} is allowed.")
    if not moved >= LEAST:
        raise ParityError(f"{method} moved no weight by more than {moved:.1e}, which is no training to compare.")
    relative = largest / max(float(np.abs(tensor).max()) for tensor in here.weights.values())
    return Difference(method, (here.platform, there.platform), largest, relative, moved)


def _apart(one: Weights, other: Weights) -> float:
    return float(np.max([np.abs(one[name] - tensor).max() for name, tensor in other.items()]))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "edge-fl" / "arm"


def main() -> None:
    """Print the differences; whatever is missing or fails is said in one sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=_cache(), help="keeps the userland [default: %(default)s]")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="edge-fl-arm-"))
    try:
        made = userland(arguments.cache.resolve(), _say)
        _say(f"emulating {CPU} with {', '.join(made.installed())}")
        install(scratch / "edge-fl", "--no-deps", str(ROOT))
        found = differences(made.python(scratch / "edge-fl"), scratch)
    except (RunError, ParityError) as error:
        _refuse(f"{error} Runs and logs are in '{scratch}'.", error)
    except EdgeFLError as error:
        shutil.rmtree(scratch)
        _refuse(str(error), error)
    shutil.rmtree(scratch)
    if arguments.json:
        print(json.dumps([asdict(difference) for difference in found]))
        return
    for difference in found:
        print(_line(difference))


def _refuse(sentence: str, error: EdgeFLError) -> NoReturn:
    print(f"arm-conformance: {sentence}", file=sys.stderr)
    sys.exit(error.exit_code)


def _line(found: Difference) -> str:
    return (
        f"{found.method}: weights trained on {' and '.join(found.platforms)} differ by at most {found.largest:.1e}, "
        f"{found.relative:.1e} of the largest weight; training moved one by {found.moved:.2f}"
    )


if __name__ == "__main__":
    main()
