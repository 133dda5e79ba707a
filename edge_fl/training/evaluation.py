"""A model's score on samples: what coordinator, devices and simulations compute alike."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import RunError
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Weights, masked
from edge_fl.data.batcher import eval_batches
from edge_fl.data.registry import Samples
from edge_fl.runtimes.base import Runtime

__all__ = ["BATCH", "Score", "score", "share_right"]

BATCH = 200
"""Samples looked at together where memory does not matter: larger batches fall out of the cache."""

_OUTPUTS = 2**24  # at most so many outputs a batch: 200 sequences over 33,278 words would take 1 GB
_FULL = 1000


@dataclass(frozen=True)
class Score:
    """Mean loss, and the share of targets among the data set's ``top`` largest outputs."""

    loss: float
    accuracy: float


def score(
    runtime: Runtime,
    weights: Weights,
    samples: Samples,
    *,
    width: int = 1000,
    statistics: int = 1000,
    top: int = 1,
    batch: int = BATCH,
) -> Score:
    """Run the bundle's evaluation program over ``samples``; each counts alike, and in a sample every position.

    Parameters
    ----------
    weights
        Full tensors by name.
    width
        Thousandths: the model is left the first units of each block, as many as this says.
    statistics
        The width, in thousandths, whose statistics BatchNorm normalises by where it has them for each.
    top
        A prediction is right when the target is among so many largest outputs.
    batch
        Samples to look at together, at the most; a program for batches of one size has that.

    Raises
    ------
    DataError
        When there are no samples.
    RunError
        When the loss is not finite.
    RuntimeMissingError
        When the bundle holds no evaluation program for the runtime.
    """
    manifest, run = runtime.bundle.manifest, runtime.evaluator()
    kept = weights if width >= _FULL else masked(weights, Pattern.prefix(runtime.bundle.layout, width))
    outputs_each = manifest.classes * int(np.prod(manifest.target.shape, dtype=np.int64))
    size = run.batch or min(max(_OUTPUTS // outputs_each, 1), batch, max(len(samples.y), 1))
    loss = correct = 0.0
    try:
        for each in eval_batches(samples, size=size):
            batch_loss, outputs = run(kept, each, width=statistics)
            loss += batch_loss * float(each.weight.sum())
            correct += float((share_right(outputs, each.y, top) * each.weight).sum())
    finally:
        runtime.settle()
    count = len(samples.y)
    if not math.isfinite(loss):
        raise RunError(f"The model's loss on held-out data is {loss}; lower the step size.")
    return Score(loss / count, correct / count)


def share_right(outputs: NDArray[np.float32], y: NDArray[np.int64], top: int) -> NDArray[np.float64]:
    """For each sample the share of its targets that are among the ``top`` largest outputs.

    Parameters
    ----------
    outputs
        ``[B, classes]`` or ``[B, T, classes]``. Of equal ones the first counts as larger, and a NaN as larger than any
        number.
    y
        ``[B]`` or ``[B, T]`` class indices.

    Returns
    -------
    ``[B]``.
    """
    target = np.take_along_axis(outputs, y[..., None], axis=-1)
    ahead = ~(outputs <= target)
    ahead |= (outputs == target) & (np.arange(outputs.shape[-1]) < y[..., None])
    right = np.count_nonzero(ahead, axis=-1) < top
    shares: NDArray[np.float64] = right.reshape(len(y), -1).mean(axis=1)
    return shares
