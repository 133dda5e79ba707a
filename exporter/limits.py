"""What differences a proof allows, and how far single precision strays by itself."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from edge_fl.core.errors import ParityError

__all__ = ["ADAM_LIMIT", "LIMIT", "SMALLEST", "DifferenceError", "Limits", "Rounding"]

LIMIT = 1e-4
"""The largest difference of any weight, loss or output that a program may show, over the largest one of its tensor."""
ADAM_LIMIT = 1e-3
"""The same for Adam's weights, as ``|difference| / |update|`` (2-norms): Adam divides by what may be nearly 0.

Also for the logarithms of variational dropout, whose size says nothing of how far they have moved.
"""
SMALLEST = 1e-3
"""Tensors that hardly move from zero are compared with this."""
_MORE_THAN_ROUNDING = 4.0  # times what torch's float32 differs by: two ways of rounding are not equally unlucky
_WIDEST = 50.0  # times a limit: under Adam a wrong gradient is wrong by about as much as the update is long
_WIDEST_UNDER_ADAM = _WIDEST * ADAM_LIMIT  # of what follows from weights that are off by as much: statistics, loss

_Place = tuple[int, float]
"""After how many steps, and which of the limits."""


class DifferenceError(ParityError):
    """A difference beyond its limit."""


class Limits:
    """What is refused: a difference beyond its limit, or beyond the one that is ``widened`` at that place."""

    def __init__(self, runtime: str, widened: Mapping[_Place, float] | None = None) -> None:
        self._runtime, self._widened = runtime, widened or {}

    def largest(self, ours: Any, theirs: Any, what: str, steps: int) -> float:
        """The largest difference, over the largest entry; raises as :meth:`require`."""
        largest = max(SMALLEST, float(np.max(np.abs(theirs), initial=0.0)))
        off = float(np.max(np.abs(np.subtract(ours, theirs)), initial=0.0)) / largest
        self.require(off, LIMIT, what, steps)
        return off

    def require(self, off: float, limit: float, what: str, steps: int) -> None:
        """Raise DifferenceError when ``off`` is too large."""
        allowed = self._widened.get((steps, limit), limit)
        if not off <= allowed:  # NaN is no difference that is small
            raise DifferenceError(
                f"The {self._runtime} programs do not compute what torch computes: {what} is off by {off:.2g} of "
                f"itself after {steps} steps (limit {allowed:.2g}), so no bundle was written; a model in which the "
                "samples of a batch influence one another other than by BatchNorm cannot be exported, and any other "
                "model is a bug to report."
            )


class Rounding(Limits):
    """Refuses nothing, and remembers how far torch's float32 strays step by step."""

    def __init__(self, runtime: str, *, adam: bool) -> None:
        super().__init__(runtime)
        self._adam = adam
        self._found: dict[_Place, float] = {}

    def require(self, off: float, limit: float, what: str, steps: int) -> None:
        """Take note of ``off``."""
        self._found[steps, limit] = max(off, self._found.get((steps, limit), 0.0))

    def widened(self) -> dict[_Place, float]:
        """A few times what float32 keeps, but never enough for a wrong program; nothing where it keeps the limits."""
        allowed = {
            (steps, limit): min(
                max(limit, _MORE_THAN_ROUNDING * off), _WIDEST_UNDER_ADAM if self._adam else _WIDEST * limit
            )
            for (steps, limit), off in self._found.items()
        }
        return {place: wide for place, wide in allowed.items() if wide > place[1]}
