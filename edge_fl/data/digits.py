"""UCI digits, embedded in the package: 1,797 handwritten digits of 8 x 8 pixels (licence in digits.LICENSE)."""

from importlib import resources
from pathlib import Path

import numpy as np

from edge_fl.core.randomness import Stream
from edge_fl.data.registry import Dataset, DatasetInfo, Samples

__all__ = ["INFO", "load"]

INFO = DatasetInfo("digits", input_shape=(1, 8, 8), classes=10)

_LEVELS = 16  # the source counts the inked pixels of 4 x 4 squares
_TRAIN = 1437


def load(folder: Path | None) -> Dataset:
    """Load the data set and split it by a fixed permutation; the same split on every machine."""
    with resources.files("edge_fl.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        pixels, labels = arrays["pixels"], arrays["labels"]
    x = np.divide(pixels, _LEVELS, dtype=np.float32).reshape(-1, *INFO.input_shape)
    samples = Samples(x, labels.astype(np.int64))
    order = Stream.of(seed=0, purpose="digits-split").permutation(len(labels))
    return Dataset(INFO, samples.take(order[:_TRAIN]), samples.take(order[_TRAIN:]))
