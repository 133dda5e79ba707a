"""pfl-research's simulation, in an environment of its own."""

from pathlib import Path

from benchmarks.peers.work import PROGRAMS, FedAvgWork, PeerRounds, check_packages, simulate

__all__ = ["check_pfl", "simulate_in_pfl"]

_PEER = "pfl-research"


def check_pfl(python: Path) -> None:
    """Raise RuntimeMissingError when ``python`` cannot be run, or has no pfl."""
    check_packages(python, "pfl, torch", peer=_PEER, install="pfl torch")


def simulate_in_pfl(work: FedAvgWork, python: Path) -> PeerRounds:
    """Simulate ``work`` with the pfl that ``python`` imports; raises as :func:`benchmarks.peers.work.simulate`."""
    launcher = [str(python), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={work.at_once}"]
    return simulate(work, [*launcher, str(PROGRAMS / "fedavg_in_pfl.py")], _PEER, {"OMP_NUM_THREADS": "1"})
