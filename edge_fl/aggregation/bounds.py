"""How much one client may weigh in a round, by the median of the round before: its samples, and its update's size."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.selection import Weights

__all__ = ["ENOUGH", "WHOLE", "Bounds", "Clip", "Limits", "Size", "median_size", "root_mean_square", "size_of"]

_SUSPICIOUS = 0.5
ENOUGH = 5
"""So many clients in a round: of fewer, nobody can say which is the odd one."""
_BLOCK = 1 << 12  # entries whose squares are added in float32: of many more the last bits would be lost


class Clip(NamedTuple):
    """The share of an update's change that counts, of its parameters and of its statistics."""

    parameters: float
    statistics: float

    @property
    def suspicious(self) -> bool:
        """Whether the update is more than twice as large as a limit. No honest one was, of all that we measured."""
        return min(self) < _SUSPICIOUS

    def of(self, tensor: Tensor) -> float:
        """The share of ``tensor``'s change."""
        return self.parameters if tensor.role == "parameter" else self.statistics


WHOLE = Clip(1.0, 1.0)
"""All of it."""


class Size(NamedTuple):
    """What an update comes to: samples, and the root mean square of its kept parameters and of its statistics.

    A mean over what is kept lets updates of narrow and of full sub-models be compared.
    """

    samples: float
    parameters: float
    statistics: float


@dataclass(frozen=True)
class Limits:
    """The most that an update may come to in one round; infinite where there is no bound."""

    samples: float = math.inf
    parameters: float = math.inf
    statistics: float = math.inf

    def clip(self, size: Size) -> Clip:
        """The shares of its change that leave an update of ``size`` within the limits."""
        return Clip(_share(size.parameters, self.parameters), _share(size.statistics, self.statistics))


@dataclass(frozen=True)
class Bounds:
    """The most that a client may weigh in a round.

    A client counts for ``max_samples`` samples at most, and for ``samples`` times the median client's. Its update's
    root mean square is scaled down to ``norm`` times the median update's (Sun et al. 2019, *Can You Really Backdoor
    Federated Learning?*, with a threshold that follows the fleet), and an update more than twice as large is left out.
    None is no bound.
    """

    max_samples: int | None = None
    samples: float | None = None
    norm: float | None = None

    @property
    def learned(self) -> bool:
        """Whether limits depend on what the fleet sends."""
        return self.samples is not None or self.norm is not None

    def limits(self, middle: Size | None) -> Limits:
        """What the bounds come to where the median update is ``middle``, or not known."""
        if middle is None:
            return Limits(samples=self._most_samples(math.inf))
        return Limits(
            samples=self._most_samples(middle.samples),
            parameters=_times(self.norm, middle.parameters),
            statistics=_times(self.norm, middle.statistics),
        )

    def most_samples(self, claimed: Sequence[int]) -> float:
        """The samples that a client counts for at most, beside clients that have ``claimed`` as many."""
        return self._most_samples(median(claimed) if claimed else math.inf)

    def _most_samples(self, middle: float) -> float:
        most = math.inf if self.max_samples is None else float(self.max_samples)
        return min(most, _times(self.samples, middle))


def size_of(layout: Layout, values: Weights, samples: int) -> Size:
    """The size of an update whose kept differences are ``values``.

    The result does not depend on the number of threads, so a fleet and its simulation clip alike.
    """
    parameters = [values[tensor.name] for tensor in layout.parameters]
    statistics = [values[tensor.name] for tensor in layout.statistics]
    return Size(float(samples), root_mean_square(parameters), root_mean_square(statistics))


def median_size(sizes: Sequence[Size]) -> Size:
    """The median of each figure by itself."""
    return Size(*(median(figures) for figures in zip(*sizes, strict=True)))


def _times(factor: float | None, middle: float) -> float:
    """``factor`` times ``middle``; no bound where the middle is 0, as of updates that mostly change nothing."""
    return math.inf if factor is None or middle == 0 else factor * middle


def _share(size: float, limit: float) -> float:
    return limit / size if size > limit else 1.0


def root_mean_square(arrays: Iterable[NDArray[np.float32]]) -> float:
    """Of all entries together; infinite where a square is beyond float32."""
    total, count = 0.0, 0
    with np.errstate(over="ignore"):  # a size beyond float32 is infinite, and clipped to nothing
        for array in arrays:
            flat = array.reshape(-1)
            whole = len(flat) // _BLOCK * _BLOCK
            blocks, rest = flat[:whole].reshape(-1, _BLOCK), flat[whole:]
            total += float(np.einsum("ij,ij->i", blocks, blocks).sum(dtype=np.float64))
            total += float(np.einsum("i,i->", rest, rest))
            count += len(flat)
    return math.sqrt(total / count) if count else 0.0
