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

__all__ = ["FlowerSum", "FlowerWork", "Flown", "check_flower", "fly", "sum_in_flower"]

_PROGRAM = "import sys, fedavg_in_flower; fedavg_in_flower.run(sys.argv[1])"
_SUM = "import sys, secagg_plus_in_flower; secagg_plus_in_flower.run(sys.argv[1])"
_CHECK = "import flwr, ray, torch"
_CHECK_SUM = "import flwr"
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


@dataclass(frozen=True)
class FlowerSum:
    """A round of Flower's SecAgg+: processor seconds of a ``device`` and of the ``server``.

    A device that stays sends so many bytes ``up``, and hears so many (``down``) besides the model. ``error`` is how far
    the mean is off.
    """

    version: str
    device: float
    server: float
    up: float
    down: float
    error: float


def check_flower(python: Path, *, simulates: bool = True) -> None:
    """Raise RuntimeMissingError when ``python`` cannot be run, or lacks what Flower's simulation needs, or Flower."""
    found = _run([str(python), "-c", _CHECK if simulates else _CHECK_SUM])
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


def sum_in_flower(
    python: Path, *, clients: int, leave: int, shares: float, threshold: float, entries: int, reach: float
) -> FlowerSum:
    """Have Flower sum vectors of ``entries`` numbers by SecAgg+; raises RuntimeMissingError as :func:`fly`.

    Of the ``clients`` some ``leave`` before they send theirs. Each has ``shares`` (of all clients) of its secrets made,
    and a ``threshold`` (of these) gives them back. Numbers are cut to ``reach``.
    """
    with TemporaryDirectory() as scratch:
        work = {
            "clients": clients,
            "leave": leave,
            "shares": shares,
            "threshold": threshold,
            "entries": entries,
            "reach": reach,
        }
        (Path(scratch) / "work.json").write_text(json.dumps(work))
        found = _run([str(python), "-c", _SUM, scratch])
        if found.returncode != 0 or not (Path(scratch) / "found.json").exists():
            raise RuntimeMissingError(f"SecAgg+ failed in '{python}'; it said: {found.stderr.strip()[-_SHOWN:]}")
        return FlowerSum(**json.loads((Path(scratch) / "found.json").read_text()))


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
