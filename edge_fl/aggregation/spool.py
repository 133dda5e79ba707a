"""A round's decoded updates on disk: what is read more than once, or together, takes no memory meanwhile."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import StateError
from edge_fl.core.layout import Layout
from edge_fl.core.selection import Weights

__all__ = ["Spool"]


class Spool:
    """Kept values of updates, one after another, in a file without a name.

    It is made with the first update, filled, read as often as need be, and gone with the object or the process.

    Parameters
    ----------
    layout
        The model's.
    folder
        Where the file lies; None for the system's place.
    """

    def __init__(self, layout: Layout, folder: Path | None) -> None:
        self._layout, self._folder = layout, folder
        self._file: IO[bytes] | None = None
        self._shapes: list[dict[str, tuple[int, ...]]] = []
        self._starts: list[int] = []
        self._end = 0
        self._mapped: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self._starts)

    def append(self, values: Weights) -> None:
        """Add one update's kept values, float32 by tensor; StateError when the disk has no room."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  (it lives as long as this)
            for tensor in self._layout.tensors:
                self._file.write(np.ascontiguousarray(values[tensor.name], dtype="<f4").data)
        except OSError as error:
            place = self._folder or tempfile.gettempdir()
            raise StateError(f"A round's updates cannot be written to '{place}': {error}.") from error
        self._shapes.append({tensor.name: values[tensor.name].shape for tensor in self._layout.tensors})
        self._starts.append(self._end)
        self._end += sum(values[tensor.name].size for tensor in self._layout.tensors)
        self._mapped = None

    def values(self, number: int) -> dict[str, NDArray[np.float32]]:
        """The kept values of the update added as ``number``, counted from 0: views that are read from disk in use."""
        mapped, start, found = self._map(), self._starts[number], {}
        for name, shape in self._shapes[number].items():
            size = int(np.prod(shape, dtype=np.int64))
            found[name] = mapped[start : start + size].reshape(shape)
            start += size
        return found

    def __iter__(self) -> Iterator[dict[str, NDArray[np.float32]]]:
        return (self.values(number) for number in range(len(self)))

    def close(self) -> None:
        """Give the room back."""
        self._mapped = None
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def _map(self) -> NDArray[np.float32]:
        if self._mapped is None:
            if self._file is None or self._end == 0:
                return np.empty(0, dtype=np.float32)
            self._file.flush()
            self._mapped = np.memmap(self._file, dtype="<f4", mode="r", shape=(self._end,))
        return self._mapped
