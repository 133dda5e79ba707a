"""Where a round's updates are summed: on CUDA, or on the CPU by compiled loops."""

import ctypes
import functools
import logging

from edge_fl.aggregation.rules import Accumulator, Rule
from edge_fl.aggregation.sums import CpuSumming, Kernels, Summing
from edge_fl.core.layout import Layout

__all__ = ["accumulator", "device_here"]

_log = logging.getLogger(__name__)


def device_here() -> str:
    """``cuda`` where there is one that torch can use, else ``cpu``."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:  # no driver of NVIDIA's: torch takes seconds and 150 MB to import, to say the same
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def accumulator(layout: Layout, rule: Rule, device: str) -> Accumulator:
    """Sums of a round's updates on ``device``, ``cpu`` or ``cuda``."""
    if device == "cpu":
        return Accumulator(layout, rule, CpuSumming(_kernels))
    from array_api_compat import torch as xp

    return Accumulator(layout, rule, Summing(xp, device))


@functools.cache  # where numba is missing, that is looked for, and told, once and not for each tensor
def _kernels() -> Kernels | None:
    try:
        from broker import sum_kernels  # takes most of a second, and 130 MB, which small models do without
    except ImportError as error:  # devices have trained by now: slow is better than not at all
        _log.warning("sums are made without numba, which cannot be imported: %s", error)
        return None
    return sum_kernels
