"""The batches of local training and evaluation: the one batcher that every runtime and the simulator share."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.batch import Batch
from edge_fl.core.errors import ConfigError, DataError
from edge_fl.core.randomness import Stream
from edge_fl.data.registry import Samples

__all__ = ["BatchRows", "batch_rows", "batches", "eval_batches"]


@dataclass(frozen=True)
class BatchRows:
    """Which samples a batch has: ``rows`` ``[B]`` int64, and ``weight`` ``[B]`` float32, 0 on padding."""

    rows: NDArray[np.int64]
    weight: NDArray[np.float32]

    def of(self, samples: Samples) -> Batch:
        """The batch."""
        return Batch(samples.x[self.rows], samples.y[self.rows], self.weight)

    def into(self, samples: Samples, x: NDArray[Any], y: NDArray[Any], weight: NDArray[np.float32]) -> None:
        """Write the batch into arrays of its shapes and dtypes."""
        _take_into(samples.x, self.rows, x)
        _take_into(samples.y, self.rows, y)
        weight[...] = self.weight


def batches(samples: Samples, *, steps: int, size: int, stream: Stream, whole: bool = False) -> Iterator[Batch]:
    """Give ``steps`` training batches of ``size`` samples; parameters and errors are those of :func:`batch_rows`."""
    _check(samples, size)
    return (drawn.of(samples) for drawn in batch_rows(samples, steps=steps, size=size, stream=stream, whole=whole))


def batch_rows(
    samples: Samples, *, steps: int, size: int, stream: Stream, whole: bool = False
) -> Iterator[BatchRows]:
    """Give which samples are in each of ``steps`` training batches of ``size``.

    Every epoch is a fresh permutation drawn from ``stream``, cut into batches; its short tail is padded with its first
    sample, of weight 0. Epochs follow one another until ``steps`` batches were given.

    Parameters
    ----------
    whole
        Give no padded batch, as BatchNorm would take padding for samples: an epoch's tail is left out, and a client
        of fewer than ``size`` samples draws each batch with replacement.

    Raises
    ------
    DataError
        When there is no sample to draw.
    ConfigError
        When ``size`` is not positive.
    """
    _check(samples, size)
    order, ones = np.empty(0, dtype=np.int64), np.ones(size, dtype=np.float32)  # all full batches have the same
    for _ in range(steps):
        if not len(order) or (whole and len(order) < size):
            order = _epoch(len(samples.y), size, stream, whole=whole)
        yield _padded(order[:size], ones)
        order = order[size:]


def _epoch(count: int, size: int, stream: Stream, *, whole: bool) -> NDArray[np.int64]:
    if whole and count < size:
        return (stream.uint32(size) % np.uint32(count)).astype(np.int64)
    return stream.permutation(count)


def eval_batches(samples: Samples, size: int) -> Iterator[Batch]:
    """Give every sample once, in order, in batches of ``size`` with a padded tail; raises as :func:`batches`."""
    _check(samples, size)
    ones = np.ones(size, dtype=np.float32)
    for start in range(0, len(samples.y), size):
        yield _padded(np.arange(start, min(start + size, len(samples.y))), ones).of(samples)


def _take_into(full: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    if full.flags.c_contiguous:  # of other arrays numpy would copy all that there is
        full.take(rows, axis=0, out=out, mode="clip")  # without "clip" it copies the batch twice
    else:
        out[...] = full[rows]


def _check(samples: Samples, size: int) -> None:
    if size < 1:
        raise ConfigError(f"A batch needs at least 1 sample, not {size}.")
    if not len(samples.y):
        raise DataError("There is no sample to make a batch of; give this client data.")


def _padded(chosen: NDArray[np.int64], ones: NDArray[np.float32]) -> BatchRows:
    """A batch of as many as there are ``ones``, which are its weights where it is full."""
    size = len(ones)
    if len(chosen) == size:
        return BatchRows(chosen, ones)
    # Not with zeros: of a sample whose mask is zeros, softmax may be NaN, and 0 times NaN is no 0.
    rows = np.concatenate([chosen, np.repeat(chosen[:1], size - len(chosen))])
    return BatchRows(rows, (np.arange(size) < len(chosen)).astype(np.float32))
