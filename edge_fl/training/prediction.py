"""A model's outputs for inputs without targets."""

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.selection import Weights
from edge_fl.data.batcher import eval_batches
from edge_fl.data.registry import Samples
from edge_fl.runtimes.base import Runtime
from edge_fl.training.evaluation import BATCH
from edge_fl.wire.frame import Frame

__all__ = ["full_weights", "predicted"]


def full_weights(frame: Frame) -> Weights:
    """A frame's model in full shapes; units that it does not hold are 0."""
    weights = {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in frame.selection.layout.tensors}
    frame.selection.scatter(frame.values, weights)
    return weights


def predicted(
    runtime: Runtime, weights: Weights, x: NDArray[np.float32] | NDArray[np.int64], *, width: int
) -> NDArray[np.float32]:
    """Outputs ``[N, ...]`` for ``x`` ``[N, ...]``, at least one, with the BatchNorm statistics of ``width``."""
    target = runtime.bundle.manifest.target
    samples = Samples(x, np.zeros((len(x), *target.shape), target.dtype))
    run = runtime.evaluator()
    outputs = [
        run(weights, batch, width=width)[1][batch.weight > 0]
        for batch in eval_batches(samples, size=run.batch or min(BATCH, len(x)))
    ]
    runtime.settle()
    return np.concatenate(outputs)
