"""Content that goes to a file as its chunks come: what is larger than a device's memory can be fetched all the same."""

import mmap
import shutil
from contextlib import suppress
from pathlib import Path

from edge_fl.core.atomic import partial_of, settle
from edge_fl.core.content import CHUNK_SIZE
from edge_fl.core.errors import StateError

__all__ = ["IncomingFile"]


class IncomingFile:
    """One content on its way into a file (see :class:`edge_fl.transport.transfer.Parts`).

    Begun as ``PATH.partial``; :meth:`settle` gives it its name. Whoever began it calls :meth:`drop` when that fails.

    Parameters
    ----------
    path
        The file; its folder is made if need be.
    size
        Bytes of the content, above 0.

    Raises
    ------
    StateError
        When it cannot be written, or the disk has no room for it; its methods likewise.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._partial, self._size = path, partial_of(path), size
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(path.parent).free
            if size > free:
                raise StateError(
                    f"'{path}' would have {size} bytes, and its disk has {free} left: make room there."
                )
            self._file = self._partial.open("w+b")
        except OSError as error:
            raise self._unwritable(error) from error

    def put(self, index: int, chunk: bytes) -> None:
        """Write a chunk where it belongs."""
        try:
            self._file.seek(index * CHUNK_SIZE)
            self._file.write(chunk)
        except OSError as error:
            raise self._unwritable(error) from error

    def whole(self) -> memoryview:
        """All of them, mapped and not read."""
        try:
            self._file.flush()
            return memoryview(mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from error

    def settle(self) -> None:
        """Give the file its name; on disk when this returns."""
        try:
            with self._file:
                settle(self._file, self._partial, self._path)
        except OSError as error:
            raise self._unwritable(error) from error

    def drop(self) -> None:
        """Remove what has come."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._partial.unlink(missing_ok=True)  # half a file would keep a full disk full

    def _unwritable(self, error: Exception) -> StateError:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return StateError(f"'{self._path}' cannot be written: {reason}.")
