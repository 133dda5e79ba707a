"""Where a round's updates are summed: on CUDA, or on the CPU by compiled loops."""

import ctypes
import functools
import logging
from typing import Protocol, runtime_checkable

from broker.defence import Defence
from edge_fl.aggregation.bounds import WHOLE, Clip
from edge_fl.aggregation.exact_sums import ExactAccumulator, Held
from edge_fl.aggregation.products import ProductAccumulator
from edge_fl.aggregation.robust_sums import RobustAccumulator
from edge_fl.aggregation.rules import Accumulator, Rule
from edge_fl.aggregation.spool import Spool
from edge_fl.aggregation.sums import CpuSumming, Kernels, Summing
from edge_fl.core.layout import Layout
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.server_half import Change

__all__ = ["HeldSums", "MakesChange", "Sums", "accumulator", "device_here", "sums_of"]

_log = logging.getLogger(__name__)


class MakesChange(Protocol):
    """A round's sums, which make a change; ``averaged`` rows had too few holders for a robust rule."""

    averaged: int

    def change(self, weights: Weights) -> Change:
        """As :meth:`edge_fl.aggregation.rules.Accumulator.change`."""
        ...


class Sums(MakesChange, Protocol):
    """Takes a round's updates, and makes a change of them."""

    def add(
        self, selection: Selection, values: Weights, samples: int, discount: float = 1, *, clip: Clip = WHOLE
    ) -> None:
        """As :meth:`edge_fl.aggregation.rules.Accumulator.add`."""


@runtime_checkable
class HeldSums(MakesChange, Protocol):
    """Makes a change of updates whose values workers have."""

    def add_held(self, held: Held, samples: int, discount: float = 1, *, clip: Clip = WHOLE) -> None:
        """Count an update, as :meth:`Sums.add` would."""


def sums_of(layout: Layout, rule: Rule, device: str, defence: Defence) -> Sums:
    """Sums of a round's updates by ``rule``, exact ones if ``defence`` says so, and by its robust rule, if any.

    A rule of products has neither (:func:`broker.products.check_products`).
    """
    if defence.exact:
        return ExactAccumulator(layout, rule, Spool(layout, defence.scratch))
    if rule.products:
        others = functools.partial(accumulator, rule=rule, device=device)
        return ProductAccumulator(layout, rule, Spool(layout, defence.scratch), others)
    plain = functools.partial(accumulator, layout, rule, device)
    if defence.robust is None:
        return plain()
    return RobustAccumulator(layout, rule, defence.robust, spool=Spool(layout, defence.scratch), sums=plain)


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
