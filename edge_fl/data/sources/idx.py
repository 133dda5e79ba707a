"""idx files, MNIST's format: ``idx:images.gz?labels=labels.gz``."""

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError
from edge_fl.data.checked import checked_samples
from edge_fl.data.idx import decode_idx, idx_shape
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import FileSource, parse_shape, read_content, split_argument

__all__ = ["SOURCE", "IdxSource"]


class IdxOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What belongs to the images.

    Parameters
    ----------
    labels
        The file of their classes.
    shape
        Of one sample, where it is another than the file's; grey images ``[n, H, W]`` are 1xHxW anyway.
    """

    labels: str
    shape: str = ""


class IdxSource(FileSource):
    """Unsigned bytes, gzipped or not: pixels in one file, classes in the other."""

    def __init__(self, argument: str) -> None:
        path, options = split_argument(argument, IdxOptions)
        super().__init__(path)
        self._labels = Path(options.labels)
        self._shape = parse_shape(options.shape) if options.shape else None

    def files(self) -> list[Path]:
        """Both files."""
        return [self.path, self._labels]

    def read(self) -> Samples:
        """The images in order, each with its class."""
        x, y = _array(self.path), _array(self._labels)
        if y.ndim != 1:
            raise DataError(
                f"'{self._labels}' holds an array of shape {y.shape}, where one class an image belongs."
            )
        shape = self._shape or (x.shape[1:] if x.ndim != 3 else (1, *x.shape[1:]))
        if x[:1].size != np.prod(shape) * len(x[:1]):
            raise DataError(f"'{self.path}' holds samples of shape {x.shape[1:]}, which cannot become {shape}.")
        return checked_samples(x.reshape(len(x), *shape), y, f"'{self.path}'")


def _array(file: Path) -> NDArray[np.uint8]:
    content = read_content(file)
    return decode_idx(content, idx_shape(content, where=str(file)), where=str(file))


SOURCE = IdxSource
