"""Scores of models of numbers: outputs and targets are float32 of one shape, ``[B, ...]``."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import Manifest
from edge_fl.metrics.base import MOST_SUMS, Metric, Sums

__all__ = ["METRICS", "R2", "MeanAbsoluteError", "RootMeanSquaredError"]


class _OfNumbers(Metric):
    """What numbers alone have."""

    def unfit(self, manifest: Manifest) -> str | None:
        """Targets must be numbers."""
        if manifest.target.dtype != "float32":
            return f"The score '{self.name}' compares numbers, and this model's targets are classes; use accuracy."
        return None


class _MeanError(_OfNumbers):
    """The sum of an error over all numbers, and how many they are."""

    higher_is_better = False

    def size(self, manifest: Manifest) -> int:
        """Two."""
        del manifest
        return 2

    def error(self, difference: NDArray[np.float64]) -> NDArray[np.float64]:
        """What each difference counts."""
        raise NotImplementedError

    def sums(self, outputs: NDArray[np.float32], y: NDArray[Any], weight: NDArray[np.float32]) -> Sums:
        """Errors, and numbers."""
        each = self.error(_rows(outputs) - _rows(y))
        return np.array([(each.sum(axis=1) * weight).sum(), weight.sum() * each.shape[1]], dtype=np.float64)

    def value(self, sums: Sums) -> float:
        """Their mean."""
        return float(sums[0] / sums[1])

    def plausible(self, sums: Sums, samples: int) -> bool:
        """Errors are not negative, and a sample has at least one number."""
        return bool(np.isfinite(sums).all() and sums[0] >= 0 and sums[1] >= samples)


class MeanAbsoluteError(_MeanError):
    """MAE: mean |output - target|."""

    name = "mae"

    def error(self, difference: NDArray[np.float64]) -> NDArray[np.float64]:
        """Its size."""
        return np.abs(difference)


class RootMeanSquaredError(_MeanError):
    """RMSE: the root of the mean (output - target)^2."""

    name = "rmse"

    def error(self, difference: NDArray[np.float64]) -> NDArray[np.float64]:
        """Its square."""
        return difference * difference

    def value(self, sums: Sums) -> float:
        """The root of their mean."""
        return math.sqrt(super().value(sums))


class R2(_OfNumbers):
    """The coefficient of determination, 1 - SSE / SST, of each output, and the mean of these.

    Sums are n, and of each output the sum of targets, of their squares, and of squared errors. An output whose targets
    are all alike counts 0, or 1 where it is met exactly.
    """

    name = "r2"

    def unfit(self, manifest: Manifest) -> str | None:
        """Three numbers an output must fit in a message."""
        outputs = math.prod(manifest.target.shape)
        if 3 * outputs + 1 > MOST_SUMS:
            return (
                f"The score 'r2' takes at most {MOST_SUMS // 3} outputs, and this model has {outputs}; use rmse."
            )
        return super().unfit(manifest)

    def size(self, manifest: Manifest) -> int:
        """1, and three an output."""
        return 1 + 3 * math.prod(manifest.target.shape)

    def sums(self, outputs: NDArray[np.float32], y: NDArray[Any], weight: NDArray[np.float32]) -> Sums:
        """Samples, targets, their squares, and squared errors."""
        truth, error, each = _rows(y), _rows(outputs) - _rows(y), weight.astype(np.float64)
        return np.concatenate([[each.sum()], each @ truth, each @ (truth * truth), each @ (error * error)])

    def value(self, sums: Sums) -> float:
        """The mean over outputs."""
        n, (total, squares, error) = sums[0], sums[1:].reshape(3, -1)
        spread = squares - total * total / n
        varied = spread > 1e-12 * np.maximum(squares, 1e-300)
        alike = np.where(error == 0, 1.0, 0.0)
        return float(np.where(varied, 1 - error / np.where(varied, spread, 1.0), alike).mean())

    def plausible(self, sums: Sums, samples: int) -> bool:
        """N is the number of samples, and squares are not negative."""
        _, squares, error = sums[1:].reshape(3, -1)
        return bool(np.isfinite(sums).all() and sums[0] == samples and (squares >= 0).all() and (error >= 0).all())


METRICS: dict[str, Callable[[], Metric]] = {
    "mae": MeanAbsoluteError,
    "r2": R2,
    "rmse": RootMeanSquaredError,
}


def _rows(values: NDArray[Any]) -> NDArray[np.float64]:
    return values.reshape(len(values), -1).astype(np.float64)
