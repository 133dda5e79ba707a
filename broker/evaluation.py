"""The global model on held-out data."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.bundle import Bundle
from edge_fl.data.batcher import eval_batches
from edge_fl.data.registry import Dataset
from edge_fl.errors import RunError, RuntimeMissingError
from edge_fl.pattern import Pattern
from edge_fl.runtimes.base import Runtime, open_runtime
from edge_fl.selection import Weights, masked
from edge_fl.width_statistics import trained_width

__all__ = ["Evaluator", "Score", "share_right"]

_BATCH = 200  # larger ones fall out of cache
_OUTPUTS = 2**24  # at most so many outputs a batch: 200 sequences over 33,278 words would take 1 GB
_PREFERRED = ("onnx", "torch_eager", "executorch", "executorch_training", "ort_training")


@dataclass(frozen=True)
class Score:
    """Mean loss, and the share of targets among the data set's ``top`` largest outputs."""

    loss: float
    accuracy: float


class Evaluator:
    """Runs a bundle's evaluation program over a test split, in the first runtime that is installed.

    Parameters
    ----------
    bundle
        The model's.
    dataset
        Its test split is the held-out data.
    threads
        CPU threads, in some runtimes the whole process's: where it trains too, those of training.
    """

    def __init__(self, bundle: Bundle, dataset: Dataset, *, threads: int = 2) -> None:
        self._run = _open(bundle, threads).evaluator()
        self._samples, self._top = dataset.test, dataset.info.top
        self._layout, self._widths = bundle.layout, bundle.manifest.statistic_widths
        start = bundle.weights()
        self._start = {tensor.name: start[tensor.name] for tensor in self._layout.tensors if tensor.per_width}
        outputs = bundle.manifest.classes * int(np.prod(dataset.info.target_shape, dtype=np.int64))
        self._size = min(max(_OUTPUTS // outputs, 1), _BATCH)

    def score(self, weights: Weights, width: int = 1000) -> Score:
        """Evaluate ``weights`` (full tensors); every sample counts alike, and in a sample every position.

        ``width`` (thousandths) leaves the model the first units of each block, with the statistics trained nearest to
        that width where BatchNorm has them for each: the model that ``extract --width`` delivers. Raises RunError when
        the loss is not finite.
        """
        kept = masked(weights, Pattern.prefix(self._layout, width))
        statistics = trained_width(self._layout, self._start, weights, self._widths, width)
        loss = correct = 0.0
        for batch in eval_batches(self._samples, size=self._size):
            batch_loss, outputs = self._run(kept, batch, width=statistics)
            loss += batch_loss * float(batch.weight.sum())
            correct += float((share_right(outputs, batch.y, self._top) * batch.weight).sum())
        count = len(self._samples.y)
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


def _open(bundle: Bundle, threads: int) -> Runtime:
    reasons = []
    for name in _PREFERRED:
        try:
            return open_runtime(name, bundle, threads=threads)
        except RuntimeMissingError as error:
            reasons.append(str(error))
    raise RuntimeMissingError("The coordinator cannot evaluate this bundle: " + " ".join(reasons))
