"""Scores of classifiers: outputs are logits, ``[B, C]`` or ``[B, ..., C]``, targets classes, ``[B]`` or ``[B, ...]``.

Positions whose target is :data:`edge_fl.core.batch.LEFT_OUT` are in no score.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.batch import LEFT_OUT
from edge_fl.core.bundle import Manifest
from edge_fl.metrics.base import MOST_SUMS, Metric, Sums

__all__ = ["METRICS", "BinaryAccuracy", "MacroF1", "MeanIoU", "Perplexity", "TopK", "share_right"]


class _OfClasses(Metric):
    """What classes alone have."""

    def unfit(self, manifest: Manifest) -> str | None:
        """Targets must be classes."""
        if manifest.target.dtype != "int64":
            return f"The score '{self.name}' counts classes, and this model's targets are numbers; use mae, rmse or r2."
        return None


class TopK(_OfClasses):
    """The share of targets among the k largest outputs: [right, samples]. A sample counts the share of its positions.

    A sample without any target is not counted. With k = 1 it is ``accuracy``. Of equal outputs the first counts as
    larger.
    """

    percent = True

    def __init__(self, k: int = 1) -> None:
        self.k = k
        self.name = "accuracy" if k == 1 else f"top-{k}"

    def unfit(self, manifest: Manifest) -> str | None:
        """There must be more classes than k."""
        if manifest.target.dtype == "int64" and self.k >= max(manifest.classes, 2):
            return f"The score '{self.name}' is always 1 for {manifest.classes} classes; choose a smaller k."
        return super().unfit(manifest)

    def size(self, manifest: Manifest) -> int:
        """Two."""
        del manifest
        return 2

    def sums(self, outputs: NDArray[np.float32], y: NDArray[Any], weight: NDArray[np.float32]) -> Sums:
        """Right predictions, and samples."""
        there = y != LEFT_OUT
        if not there.all():
            weight = weight * there.reshape(len(y), -1).any(axis=1)
        right = (share_right(outputs, y, self.k) * weight).sum()
        return np.array([right, weight.sum()], dtype=np.float64)

    def value(self, sums: Sums) -> float:
        """Right over samples."""
        return float(sums[0] / sums[1])

    def plausible(self, sums: Sums, samples: int) -> bool:
        """No more are right than there are."""
        right, counted = sums
        fits = 0 < counted <= samples and -1e-6 <= right <= counted * (1 + 1e-9)
        return bool(np.isfinite(sums).all() and fits)


class _MeanOfClasses(_OfClasses):
    """The mean of a share of each class; classes that are nowhere are left out. Sums are TP, FP and FN of each."""

    percent = True

    def unfit(self, manifest: Manifest) -> str | None:
        """Three numbers a class must fit in a message."""
        if 3 * manifest.classes > MOST_SUMS:
            return f"The score '{self.name}' takes at most {MOST_SUMS // 3} classes, not {manifest.classes}."
        return super().unfit(manifest)

    def size(self, manifest: Manifest) -> int:
        """Three a class."""
        return 3 * manifest.classes

    def sums(self, outputs: NDArray[np.float32], y: NDArray[Any], weight: NDArray[np.float32]) -> Sums:
        """TP, FP and FN of each class."""
        classes = outputs.shape[-1]
        positions = y.size // max(len(y), 1)
        counted = np.repeat(weight > 0, positions) & (y.reshape(-1) != LEFT_OUT)
        truth, said = y.reshape(-1)[counted], outputs.argmax(axis=-1).reshape(-1)[counted]
        right = np.bincount(truth[truth == said], minlength=classes)
        predicted, there = np.bincount(said, minlength=classes), np.bincount(truth, minlength=classes)
        return np.concatenate([right, predicted - right, there - right]).astype(np.float64)

    def value(self, sums: Sums) -> float:
        """The mean over the classes that there are."""
        right, wrong, missed = sums.reshape(3, -1)
        there = right + wrong + missed > 0
        return float(self.share(right[there], (wrong + missed)[there]).mean()) if there.any() else 0.0

    @abstractmethod
    def share(self, right: Sums, wrong: Sums) -> Sums:
        """That of each class, of TP and of FP + FN."""

    def plausible(self, sums: Sums, samples: int) -> bool:
        """Whole numbers, as many missed as wrong."""
        del samples  # of which some may have no target
        _, wrong, missed = sums.reshape(3, -1)
        counts = np.isfinite(sums).all() and bool((sums >= 0).all()) and bool((sums == np.rint(sums)).all())
        return bool(counts and wrong.sum() == missed.sum())


class MacroF1(_MeanOfClasses):
    """The mean over classes of F1 = 2 TP / (2 TP + FP + FN)."""

    name = "macro-f1"

    def share(self, right: Sums, wrong: Sums) -> Sums:
        """F1."""
        return 2 * right / (2 * right + wrong)


class MeanIoU(_MeanOfClasses):
    """The mean over classes of the Jaccard index TP / (TP + FP + FN), over all positions of all samples together."""

    name = "mean-iou"

    def share(self, right: Sums, wrong: Sums) -> Sums:
        """Intersection over union."""
        return right / (right + wrong)


class Perplexity(_OfClasses):
    """exp of the mean negative log-likelihood of a target: [nats, targets]."""

    name = "perplexity"
    higher_is_better = False

    def size(self, manifest: Manifest) -> int:
        """Two."""
        del manifest
        return 2

    def sums(self, outputs: NDArray[np.float32], y: NDArray[Any], weight: NDArray[np.float32]) -> Sums:
        """Nats, and targets."""
        logits = outputs.astype(np.float64)
        top = logits.max(axis=-1, keepdims=True)
        total = np.log(np.exp(logits - top).sum(axis=-1)) + top[..., 0]
        there = y != LEFT_OUT
        nats = total - np.take_along_axis(logits, np.where(there, y, 0)[..., None], axis=-1)[..., 0]
        each, counted = np.where(there, nats, 0).reshape(len(y), -1), there.reshape(len(y), -1).sum(axis=1)
        return np.array([(each.sum(axis=1) * weight).sum(), (counted * weight).sum()], dtype=np.float64)

    def value(self, sums: Sums) -> float:
        """exp(nats / targets), at most the largest float."""
        return math.exp(min(float(sums[0] / sums[1]), 700.0))

    def plausible(self, sums: Sums, samples: int) -> bool:
        """Some targets, of which none is less than nothing."""
        del samples  # of which some may have no target
        return bool(np.isfinite(sums).all() and sums[0] >= -1e-6 and sums[1] >= 1)


class BinaryAccuracy(Metric):
    """The share of numbers on the right side: a logit above 0 where the target is above 0.5. [right, numbers]."""

    name = "binary-accuracy"
    percent = True

    def unfit(self, manifest: Manifest) -> str | None:
        """Targets must be numbers in [0, 1]."""
        if manifest.target.dtype != "float32":
            return "The score 'binary-accuracy' compares logits with targets in [0, 1]; use accuracy for classes."
        return None

    def size(self, manifest: Manifest) -> int:
        """Two."""
        del manifest
        return 2

    def sums(self, outputs: NDArray[np.float32], y: NDArray[Any], weight: NDArray[np.float32]) -> Sums:
        """Right, and all."""
        right = ((outputs > 0) == (y > 0.5)).reshape(len(y), -1)
        return np.array([(right.sum(axis=1) * weight).sum(), weight.sum() * right.shape[1]], dtype=np.float64)

    def value(self, sums: Sums) -> float:
        """Right over all."""
        return float(sums[0] / sums[1])

    def plausible(self, sums: Sums, samples: int) -> bool:
        """No more are right than there are."""
        return bool(np.isfinite(sums).all() and 0 <= sums[0] <= sums[1] and sums[1] >= samples)


METRICS: dict[str, Callable[[], Metric]] = {
    "accuracy": TopK,
    "binary-accuracy": BinaryAccuracy,
    "macro-f1": MacroF1,
    "mean-iou": MeanIoU,
    "perplexity": Perplexity,
}


def share_right(outputs: NDArray[np.float32], y: NDArray[np.int64], top: int) -> NDArray[np.float64]:
    """For each sample the share of its targets that are among the ``top`` largest outputs.

    Parameters
    ----------
    outputs
        ``[B, classes]`` or ``[B, T, classes]``. Of equal ones the first counts as larger, and a NaN as larger than any
        number.
    y
        ``[B]`` or ``[B, T]`` class indices, or :data:`~edge_fl.core.batch.LEFT_OUT`.

    Returns
    -------
    ``[B]``: of the positions that have a target; 0 where none has.
    """
    there = y != LEFT_OUT
    place = np.where(there, y, 0)[..., None]
    target = np.take_along_axis(outputs, place, axis=-1)
    ahead = ~(outputs <= target)
    ahead |= (outputs == target) & (np.arange(outputs.shape[-1]) < place)
    right = (np.count_nonzero(ahead, axis=-1) < top) & there
    counted = there.reshape(len(y), -1).sum(axis=1)
    shares: NDArray[np.float64] = right.reshape(len(y), -1).sum(axis=1) / np.maximum(counted, 1)
    return shares
