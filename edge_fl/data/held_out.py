"""A device's own data in two parts: what it trains on, and what it only evaluates models on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import ConfigError, DataError
from edge_fl.core.randomness import Stream
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import DataSource

__all__ = ["HeldOut", "Split", "held_out"]


@dataclass(frozen=True)
class Split:
    """The two parts, each in the order of the whole; ``test`` may be empty, and is where nothing is held out."""

    train: Samples
    test: Samples

    @property
    def sizes(self) -> tuple[int, int]:
        """How many samples there are of each."""
        return len(self.train.y), len(self.test.y)


class HeldOut:
    """A data source, a share of which is kept out of training.

    Sample i is a test sample when word i of the client's stream ``test-split`` (docs/protocol.md, 1.2) is below
    ``share * 2**32``: it stays one however many samples follow it, and whoever asks. With a larger share all those of a
    smaller one are test samples, too.

    Parameters
    ----------
    source
        The device's own data.
    share
        What is held out of it, in [0, 1).
    client
        The device's id, which keys the draw.

    Raises
    ------
    ConfigError
        When ``share`` is none.
    """

    def __init__(self, source: DataSource, share: float, client: str) -> None:
        if not 0 <= share < 1:
            raise ConfigError(
                f"The share of a device's samples to hold out is in [0, 1), not {share:g}; change --test-share."
            )
        self._source, self._share, self._client = source, share, client
        self._held: tuple[Samples, Split] | None = None

    def split(self) -> Split:
        """The data as it is now; where nothing has changed, the very object of the call before.

        Raises DataError as :meth:`~edge_fl.data.sources.base.DataSource.samples` does, and when no sample is left to
        train on.
        """
        samples = self._source.samples()
        if self._held is None or self._held[0] is not samples:
            self._held = samples, self._divided(samples)
        return self._held[1]

    def _divided(self, samples: Samples) -> Split:
        held = held_out(len(samples.y), self._share, self._client)
        train = samples.take(np.flatnonzero(~held)) if held.any() else samples  # no copy of what is whole
        return Split(train, samples.take(np.flatnonzero(held)))


def held_out(samples: int, share: float, client: str) -> NDArray[np.bool_]:
    """Which of a client's ``samples`` are held out, ``[samples]``, as :class:`HeldOut` says; DataError if all are."""
    held = Stream.of(seed=0, purpose="test-split", client=client).uint32(samples) < share * 2**32
    if held.all():
        raise DataError(
            f"Holding out a share of {share:g} leaves none of the {samples} samples to train on; "
            "lower --test-share, or give more data."
        )
    return held
