"""What MNIST and the data sets made in its image share: four idx files of 28 x 28 grey images and 10 classes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_fl.data.files import RemoteFile, read_file
from edge_fl.data.idx import decode_idx
from edge_fl.data.registry import Dataset, DatasetInfo, Samples

__all__ = ["load_idx_dataset"]

_TRAIN, _TEST = 60_000, 10_000


def load_idx_dataset(info: DatasetInfo, url: str, sha256: Mapping[str, str], folder: Path | None) -> Dataset:
    """Load the four files of ``info``.

    Parameters
    ----------
    url
        The address they are published under.
    sha256
        The checksum of each by file name.
    folder
        The user's data folder: the files are in its subfolder named after the data set.

    Raises
    ------
    DataError
        When a file cannot be had, or is damaged.
    """

    def read(name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        file = RemoteFile(f"{info.name}/{name}", f"{url}/{name}", sha256[name])
        return decode_idx(read_file(file, folder), shape, where=file.name)

    def split(prefix: str, n: int) -> Samples:
        pixels = read(f"{prefix}-images-idx3-ubyte.gz", (n, *info.input_shape[1:]))
        labels = read(f"{prefix}-labels-idx1-ubyte.gz", (n,))
        x = np.divide(pixels, 255, dtype=np.float32).reshape(n, *info.input_shape)
        return Samples(x, labels.astype(np.int64))

    return Dataset(info, split("train", _TRAIN), split("t10k", _TEST))
