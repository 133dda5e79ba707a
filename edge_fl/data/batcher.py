"""The batches of local training and evaluation: the one batcher that every runtime and the simulator share."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edge_fl.data.registry import Samples
from edge_fl.errors import ConfigError, DataError
from edge_fl.randomness import Stream
from edge_fl.runtimes.base import Batch

__all__ = ["batches", "eval_batches"]


def batches(samples: Samples, *, steps: int, size: int, stream: Stream) -> Iterator[Batch]:
    """Give ``steps`` training batches of ``size`` samples.

    Every epoch is a fresh permutation drawn from ``stream``, cut into batches; its short tail is padded with
    zeros of weight 0. Epochs follow one another until ``steps`` batches were given.

    Raises
    ------
    DataError
        When there is no sample to draw.
    ConfigError
        When ``size`` is not positive.
    """
    _check(samples, size)
    order = np.empty(0, dtype=np.int64)
    for _ in range(steps):
        if not len(order):
            order = stream.permutation(len(samples.y))
        yield _padded(samples, order[:size], size)
        order = order[size:]


def eval_batches(samples: Samples, size: int) -> Iterator[Batch]:
    """Give every sample once, in order, in batches of ``size`` with a padded tail; raises as :func:`batches`."""
    _check(samples, size)
    for start in range(0, len(samples.y), size):
        yield _padded(samples, np.arange(start, min(start + size, len(samples.y))), size)


def _check(samples: Samples, size: int) -> None:
    if size < 1:
        raise ConfigError(f"A batch needs at least 1 sample, not {size}.")
    if not len(samples.y):
        raise DataError("There is no sample to make a batch of; give this client data.")


def _padded(samples: Samples, chosen: NDArray[np.int64], size: int) -> Batch:
    x = np.zeros((size, *samples.x.shape[1:]), dtype=samples.x.dtype)
    y = np.zeros((size, *samples.y.shape[1:]), dtype=np.int64)
    weight = np.zeros(size, dtype=np.float32)
    x[: len(chosen)] = samples.x[chosen]
    y[: len(chosen)] = samples.y[chosen]
    weight[: len(chosen)] = 1.0
    return Batch(x, y, weight)
