"""What a partition gives its clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.batch import LEFT_OUT
from edge_fl.data.registry import Samples

__all__ = ["PartStatistics", "describe_parts"]


@dataclass(frozen=True)
class PartStatistics:
    """A partition by numbers, each ``[clients]`` int64.

    Parameters
    ----------
    samples
        How many.
    labels
        How many classes are among their targets.
    owners
        How many owners' they are; None where owners are unknown.
    counts
        ``[clients, classes]``: targets of each class.
    """

    samples: NDArray[np.int64]
    labels: NDArray[np.int64]
    owners: NDArray[np.int64] | None
    counts: NDArray[np.int64]


def describe_parts(train: Samples, parts: Sequence[NDArray[np.int64]], classes: int) -> PartStatistics:
    """Count what each part, indices into ``train``, holds."""
    labels = train.y if train.y.dtype == np.int64 else np.zeros((len(train.y), 0), dtype=np.int64)
    counts = np.stack([_counted(labels[part].reshape(-1), classes) for part in parts])
    owner = train.owner
    return PartStatistics(
        samples=np.array([len(part) for part in parts]),
        labels=np.count_nonzero(counts, axis=1),
        owners=None if owner is None else np.array([len(np.unique(owner[part])) for part in parts]),
        counts=counts,
    )


def _counted(labels: NDArray[Any], classes: int) -> NDArray[np.int64]:
    return np.bincount(labels[labels != LEFT_OUT], minlength=classes)
