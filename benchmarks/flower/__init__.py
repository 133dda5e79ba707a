"""Flower's simulation of the same FedAvg, in an environment of its own (``pip install 'flwr[simulation]' torch``).

Nothing of edge-fl is imported there: ``fedavg_in_flower.py`` is imported there by itself, and handed data, clients and
model as files.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edge_fl.core.errors import RuntimeMissingError
from edge_fl.data.registry import Samples

__all__ = ["FlowerWork", "Flown", "check_flower", "fly"]

_PROGRAM = "import sys, fedavg_in_flower; fedavg_in_flower.run(sys.argv[1])"
_CHECK = "import flwr, ray, torch"
_MINUTES = 60
_SHOWN = 600  # characters of what Flower said last


@dataclass(frozen=True)
class FlowerWork:
    """What Flower simulates: all clients' samples, which of them each holds, and how those picked train.

    ``clients`` are picked a round, each of which takes ``steps`` SGD steps of ``batch`` samples at step size ``lr``;
    ``at_once`` of them are trained at the same time, in a process of one thread each. ``model`` is made of torch's own
    modules alone: it is pickled.
    """

    model: nn.Module
    samples: Samples
    parts: Sequence[NDArray[np.int64]]
    clients: int
    steps: int
    batch: int
    lr: float
    rounds: int
    at_once: int


@dataclass(frozen=True)
class Flown:
    """Flower's version, the wall seconds of each round, and by how much the weights changed in all, at most."""

    version: str
    seconds: tuple[float, ...]
    moved: float


def check_flower(python: Path) -> None:
    """Raise RuntimeMissingError when ``python`` cannot be run, or lacks what Flower's simulation needs."""
    found = _run([str(python), "-c", _CHECK])
    if found.returncode != 0:
        raise RuntimeMissingError(
            f"'{python}' has no Flower ({_last(found)}): give that Python `pip install 'flwr[simulation]' torch`."
        )


def fly(work: FlowerWork, python: Path) -> Flown:
    """Simulate ``work`` with the Flower that ``python`` imports (:func:`check_flower`).

    Raises
    ------
    RuntimeMissingError
        When that Python cannot be run, or Flower fails.
    """
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        torch.save(work.model, folder / "model.pt")
        np.savez(
            folder / "data.npz",
            x=work.samples.x,
            y=work.samples.y,
            indices=np.concatenate(work.parts),
            ends=np.cumsum([len(part) for part in work.parts]),
        )
        names = ("clients", "steps", "batch", "lr", "rounds", "at_once")
        (folder / "work.json").write_text(json.dumps({name: getattr(work, name) for name in names}))
        found = _run([str(python), "-c", _PROGRAM, str(folder)])
        if found.returncode != 0 or not (folder / "found.json").exists():
            said = found.stderr.strip()[-_SHOWN:]
            raise RuntimeMissingError(f"Flower's simulation failed in '{python}'; it said: {said}")
        return Flown(**json.loads((folder / "found.json").read_text()))


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # Ray's processes import the program by its name, too.
    own = {"PYTHONPATH": str(Path(__file__).parent), "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        return subprocess.run(
            command, check=False, capture_output=True, text=True, env=os.environ | own, timeout=60 * _MINUTES
        )
    except OSError as error:
        raise RuntimeMissingError(f"'{command[0]}' cannot be run ({error.strerror}): name a Python.") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeMissingError(f"Flower's simulation did not end within {_MINUTES} minutes.") from error


def _last(found: subprocess.CompletedProcess[str]) -> str:
    return (found.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]
