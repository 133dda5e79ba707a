"""Where a round's updates are summed: on CUDA, or on the CPU by compiled loops."""

from array_api_compat import torch as xp

from edge_fl.aggregation import Accumulator, Rule
from edge_fl.layout import Layout
from edge_fl.summing import Kernels

__all__ = ["accumulator"]


def accumulator(layout: Layout, rule: Rule, device: str) -> Accumulator:
    """Sums of a round's updates on ``device``, ``cpu`` or ``cuda``."""
    return Accumulator(layout, xp=xp, device=device, rule=rule, kernels=_kernels)


def _kernels() -> Kernels:
    from broker import sum_kernels  # takes most of a second, which small models do without

    return sum_kernels
