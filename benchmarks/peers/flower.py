"""Flower's simulation, and its secure aggregation, in an environment of its own."""

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peers.work import FedAvgWork, PeerRounds, check_packages, output_of, simulate
from edge_fl.core.errors import RuntimeMissingError

__all__ = ["FlowerSum", "check_flower", "simulate_in_flower", "sum_in_flower"]

_PEER = "Flower"
_PROGRAM = "import sys, fedavg_in_flower; fedavg_in_flower.run(sys.argv[1])"  # Ray's processes import it by name
_SUM = "import sys, secagg_plus_in_flower; secagg_plus_in_flower.run(sys.argv[1])"
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
_SHOWN = 600  # characters of what Flower said last


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
    packages = "flwr, ray, torch" if simulates else "flwr"
    check_packages(python, packages, peer=_PEER, install="'flwr[simulation]' torch")


def simulate_in_flower(work: FedAvgWork, python: Path) -> PeerRounds:
    """Simulate ``work`` with the Flower that ``python`` imports; raises as :func:`benchmarks.peers.work.simulate`."""
    return simulate(work, [str(python), "-c", _PROGRAM], _PEER, _QUIET)


def sum_in_flower(
    python: Path, *, clients: int, leave: int, shares: float, threshold: float, entries: int, reach: float
) -> FlowerSum:
    """Have Flower sum vectors of ``entries`` numbers by SecAgg+; RuntimeMissingError where it cannot.

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
        found = output_of([str(python), "-c", _SUM, scratch], _PEER, _QUIET)
        if found.returncode != 0 or not (Path(scratch) / "found.json").exists():
            raise RuntimeMissingError(f"SecAgg+ failed in '{python}'; it said: {found.stderr.strip()[-_SHOWN:]}")
        return FlowerSum(**json.loads((Path(scratch) / "found.json").read_text()))
