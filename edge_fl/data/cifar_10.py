"""CIFAR-10: 50,000 + 10,000 colour pictures of ten things (Krizhevsky, 2009).

A folder may hold ``cifar-10-batch1-and-test.tar.xz`` instead of the published archive: the first of the five training
batches and the test batch, 10,000 + 10,000 pictures.
"""

from pathlib import Path

import numpy as np

from edge_fl.core.errors import DataError
from edge_fl.data.files import RemoteFile, read_members
from edge_fl.data.registry import Dataset, DatasetInfo, Samples

__all__ = ["INFO", "decode_pictures", "load"]

INFO = DatasetInfo("cifar-10", input_shape=(3, 32, 32), classes=10)

_PUBLISHED = RemoteFile(
    "cifar-10/cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_REPACKED = RemoteFile(
    "cifar-10/cifar-10-batch1-and-test.tar.xz",
    _PUBLISHED.url,
    "e671cc003c4af385fa575e034cf153360841d25aa22ec81ae873abd10d6a8305",
)
_PIXELS = 3 * 32 * 32


def load(folder: Path | None) -> Dataset:
    """Load the data set from ``folder``, else by download; raises DataError when it cannot be had."""
    files = dict(read_members([_PUBLISHED], [_REPACKED], folder))
    train = b"".join(content for name, content in sorted(files.items()) if name.startswith("data_batch_"))
    return Dataset(
        INFO,
        decode_pictures(train, "cifar-10/data_batch"),
        decode_pictures(files.get("test_batch.bin", b""), "cifar-10/test_batch.bin"),
    )


def decode_pictures(content: bytes, where: str) -> Samples:
    """Decode records of one byte of class and 3,072 of pixels: the red plane, the green and the blue, row by row.

    Returns
    -------
    Samples of ``x`` ``[n, 3, 32, 32]`` in [0, 1].

    Raises
    ------
    DataError
        When there is no record, part of one, or a class above 9; ``where`` names the file.
    """
    if not content or len(content) % (1 + _PIXELS):
        raise DataError(f"'{where}' holds {len(content)} bytes, which is no number of CIFAR-10 records.")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + _PIXELS)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= INFO.classes:
        raise DataError(f"'{where}' holds class {labels.max()}; CIFAR-10 has {INFO.classes}.")
    x = np.divide(records[:, 1:], 255, dtype=np.float32).reshape(-1, *INFO.input_shape)
    return Samples(x, labels)
