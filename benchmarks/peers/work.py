"""Rounds of FedAvg for another framework's simulation, in an environment of its own.

Nothing of edge-fl is imported there. A program beside this file is, and gets data, clients and model as files.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edge_fl.core.errors import RuntimeMissingError
from edge_fl.data.registry import Samples

__all__ = ["PROGRAMS", "FedAvgWork", "PeerRounds", "check_packages", "output_of", "simulate"]

PROGRAMS = Path(__file__).parent
"""Where the programs lie that a peer's Python runs."""

_MINUTES = 60
_SHOWN = 600  # characters of what a peer said last


@dataclass(frozen=True)
class FedAvgWork:
    """What is simulated: all clients' samples, which of them each holds, and how those picked train.

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
class PeerRounds:
    """The peer's version, the wall seconds of each round, and by how much the weights changed in all, at most."""

    version: str
    seconds: tuple[float, ...]
    moved: float


def check_packages(python: Path, packages: str, *, peer: str, install: str) -> None:
    """Raise RuntimeMissingError when ``python`` cannot be run, or cannot import ``packages``."""
    found = output_of([str(python), "-c", f"import {packages}"], peer)
    if found.returncode != 0:
        last = (found.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]
        raise RuntimeMissingError(f"'{python}' has no {peer} ({last}): give that Python `pip install {install}`.")


def simulate(
    work: FedAvgWork, command: Sequence[str], peer: str, env: Mapping[str, str] | None = None
) -> PeerRounds:
    """Have ``command`` simulate ``work``, whose folder is its last argument.

    Raises
    ------
    RuntimeMissingError
        When the command cannot be run, or fails.
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
        found = output_of([*command, scratch], peer, env or {})
        if found.returncode != 0 or not (folder / "found.json").exists():
            said = found.stderr.strip()[-_SHOWN:]
            raise RuntimeMissingError(f"{peer}'s simulation failed in '{command[0]}'; it said: {said}")
        return PeerRounds(**json.loads((folder / "found.json").read_text()))


def output_of(
    command: Sequence[str], peer: str, env: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run a command beside the programs; RuntimeMissingError when that cannot be done, or takes an hour."""
    own = {"PYTHONPATH": str(PROGRAMS), **env}
    try:
        return subprocess.run(
            command, check=False, capture_output=True, text=True, env=os.environ | own, timeout=60 * _MINUTES
        )
    except OSError as error:
        raise RuntimeMissingError(f"'{command[0]}' cannot be run ({error.strerror}): name a Python.") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeMissingError(f"{peer} did not end within {_MINUTES} minutes.") from error
