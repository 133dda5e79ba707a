"""A round's updates in one file, written as their chunks come: what a slow link still sends takes no memory."""

import os
from pathlib import Path

from edge_fl.core.content import CHUNK_SIZE
from edge_fl.core.errors import StateError

__all__ = ["Place", "UpdateFile", "read_update"]

_AHEAD = 16 << 20
"""Bytes that the file grows by at a time; where files may have holes, what nobody writes takes none of the disk."""


def read_update(path: Path, offset: int, size: int) -> bytes:
    """An update that was taken."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


class UpdateFile:
    """Room for one update of each client; a file for each would take longer to make than to write.

    What a process that was killed has left there, whole or not, stays as it is.

    Parameters
    ----------
    path
        Made if need be.
    room
        Bytes of an update at the most: a client that offers another one in place of its first gets the same room.

    Raises
    ------
    StateError
        When it cannot be written; so do its places.
    """

    def __init__(self, path: Path, room: int) -> None:
        self.path, self._room = path, room
        self._offsets: dict[str, int] = {}
        try:
            path.parent.mkdir(exist_ok=True)
            path.touch()
            self._file = path.open("r+b", buffering=0)
            self._end = self._reserved = path.stat().st_size
        except OSError as error:
            raise self._unwritable(error) from error

    def offset(self, client: str) -> int:
        """Where the client's update begins."""
        if client not in self._offsets:
            end = self._end + self._room
            if end > self._reserved:
                self._reserve(end + max(_AHEAD - self._room, 0))
            self._offsets[client], self._end = self._end, end
        return self._offsets[client]

    def _reserve(self, end: int) -> None:
        """Have the file reach beyond what is given out: whoever opens it next begins behind that."""
        try:
            self._file.truncate(end)
        except OSError as error:
            raise self._unwritable(error) from error
        self._reserved = end

    def place(self, client: str, size: int) -> "Place":
        """The place of the client's update of so many bytes."""
        return Place(self, self.offset(client), size)

    def write(self, offset: int, data: bytes) -> None:
        """Hand ``data`` to the operating system, which the end of this process leaves untouched."""
        left = memoryview(data)
        try:
            while left:  # a call may write a part
                written = os.pwrite(self._file.fileno(), left, offset)
                left, offset = left[written:], offset + written
        except OSError as error:
            raise self._unwritable(error) from error

    def read(self, offset: int, size: int) -> bytes:
        """What was written there."""
        parts = []
        while size and (part := os.pread(self._file.fileno(), size, offset)):  # a call may read a part
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Write no more."""
        self._file.close()

    def _unwritable(self, error: OSError) -> StateError:
        return StateError(f"'{self.path}' cannot be written: {error.strerror}.")


class Place:
    """One update on its way into the file (see ``edge_fl.transport.transfer.Parts``).

    An update of one chunk is whole as it comes, and not read again: what is summed later is what the file has.
    """

    def __init__(self, file: UpdateFile, offset: int, size: int) -> None:
        self._file, self._offset, self._size = file, offset, size
        self._only = b""

    def put(self, index: int, chunk: bytes) -> None:
        """Write a chunk where it belongs."""
        self._file.write(self._offset + index * CHUNK_SIZE, chunk)
        if len(chunk) == self._size:
            self._only = chunk

    def whole(self) -> bytes:
        """All of them."""
        only, self._only = self._only, b""
        return only or self._file.read(self._offset, self._size)
