"""numpy's ``.npz``: ``npz:samples.npz`` with the arrays ``x`` and ``y``, and perhaps ``owner``."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from edge_fl.core.errors import DataError
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import FileSource, checked_samples, read_content

__all__ = ["SOURCE", "NpzSource"]

_DAMAGE = (
    ValueError,
    KeyError,
    EOFError,
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
)


class NpzSource(FileSource):
    """Two arrays in one file; nothing is unpickled."""

    def __init__(self, argument: str) -> None:
        super().__init__(Path(argument))

    def files(self) -> list[Path]:
        """The one file."""
        return [self.path]

    def read(self) -> Samples:
        """Its ``x`` and ``y``, and its ``owner`` where there is one."""
        read_content(self.path)  # what cannot be opened is told apart from what is damaged
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                x, y = arrays["x"], arrays["y"]
                owner = arrays.get("owner")
        except _DAMAGE as error:
            raise DataError(
                f"'{self.path}' is no .npz file with the arrays x and y: "
                f"{' '.join(str(error).split()).strip(chr(39) + '.')}."
            ) from error
        return checked_samples(x, y, f"'{self.path}'", owner=owner)


SOURCE = NpzSource
