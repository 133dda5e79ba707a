"""Both ends of a pipe between this machine's processes, beside which large buffers go through files."""

import os
import pickle
import sys
from collections.abc import Iterable, Sequence
from io import BytesIO
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from tempfile import TemporaryFile
from typing import Any

import msgspec

from edge_fl.core.errors import RunError
from edge_fl.training.update import Update

__all__ = ["Channel", "ready_among"]

_SMALL = 1 << 12  # bytes of a buffer that the pipe may as well carry
# On macOS the end that takes a descriptor answers over the same pipe, where another thread may be receiving.
_HANDS_OVER = sys.platform != "darwin"
_AT_ONCE = 1 << 30  # bytes of one read or write: Linux takes 2 GiB at most


class Channel:
    """Sends and receives what can be pickled, as a :class:`~multiprocessing.connection.Connection` does.

    A pipe takes in some 200 kB at a time, and wakes the other process for each. So arrays and updates' frames are
    written into a temporary file, and the pipe says how long they are. Each end has ``files`` of these, and takes them
    in turn: it sends at most so many messages before the other end has received the first of them. A file has no name:
    its descriptor goes over the pipe, and the file ends with both processes.

    Parameters
    ----------
    connection
        One end of a pipe of both directions; the other process has a channel for the other.
    files
        How many messages may be under way in one direction.

    Attributes
    ----------
    connection
        That end of the pipe.
    """

    def __init__(self, connection: Connection, files: int) -> None:
        self.connection, self._files = connection, files
        self._written: dict[int, int] = {}  # descriptors, by the place of a message
        self._read: dict[int, int] = {}
        self._handed: set[int] = set()  # places whose file the other end has, too
        self._sent = self._received = 0

    def send(self, value: object) -> None:
        """Send it; OSError where the other process is no more, RunError where a file cannot be written."""
        stream, buffers = BytesIO(), list[memoryview]()
        _Pickler(stream, buffers).dump(value)
        place = self._sent % self._files
        is_new = bool(buffers) and place not in self._handed
        if buffers:
            self._write(place, buffers)
        sizes = [(len(buffer), buffer.readonly) for buffer in buffers]
        self.connection.send((is_new, sizes, stream.getvalue()))
        if is_new:
            send_handle(self.connection, self._written[place], os.getpid())
            self._handed.add(place)
        self._sent += 1

    def receive(self) -> Any:
        """What the other process sent next; EOFError or OSError where that process is no more."""
        is_new, sizes, pickled = self.connection.recv()
        place = self._received % self._files
        self._received += 1
        if is_new:
            self._read[place] = recv_handle(self.connection)
        start, buffers = 0, list[bytes | bytearray]()
        for size, readonly in sizes:
            got = _got(self._read[place], size, start)
            buffers.append(got if readonly else bytearray(got))
            start += size
        return pickle.loads(pickled, buffers=buffers)

    def close(self) -> None:
        """Close the pipe and the files."""
        self.connection.close()
        for descriptor in (*self._written.values(), *self._read.values()):
            os.close(descriptor)
        self._written.clear()
        self._read.clear()

    def _write(self, place: int, buffers: Sequence[memoryview]) -> None:
        """Write them one after another into the file of a place, which is made when it is first needed."""
        try:
            if place not in self._written:
                with TemporaryFile() as file:
                    self._written[place] = os.dup(file.fileno())
            _put(self._written[place], buffers)
        except OSError as error:
            raise RunError(
                f"A temporary file of the simulation's processes cannot be written: {error.strerror}. Free some space "
                "in the folder for temporary files, or name another in TMPDIR."
            ) from error


def ready_among(channels: Iterable[Channel]) -> list[Channel]:
    """Wait until there is something to receive; of which channels there is."""
    by_connection: dict[Any, Channel] = {channel.connection: channel for channel in channels}
    return [by_connection[connection] for connection in wait(by_connection)]


class _Pickler(pickle.Pickler):
    """Gives ``buffers`` what is large, in place of a copy in the stream."""

    def __init__(self, stream: BytesIO, buffers: list[memoryview]) -> None:
        super().__init__(stream, protocol=5, buffer_callback=self._take)
        self._buffers = buffers

    def reducer_override(self, value: Any) -> Any:
        """Updates, whose bytes are no buffers otherwise, and UNSET, for which pickle searches all modules."""
        if isinstance(value, Update):
            frame, withheld = pickle.PickleBuffer(value.frame), pickle.PickleBuffer(value.withheld)
            return Update, (frame, value.loss, value.state, withheld)
        return (_unset, ()) if value is msgspec.UNSET else NotImplemented

    def _take(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether it stays in the stream."""
        raw = buffer.raw()
        if len(raw) < _SMALL or not _HANDS_OVER:
            return True
        self._buffers.append(raw)
        return False


def _unset() -> msgspec.UnsetType:
    return msgspec.UNSET


def _put(descriptor: int, buffers: Sequence[memoryview]) -> None:
    place = 0
    for buffer in buffers:
        while buffer:
            written = os.pwrite(descriptor, buffer[:_AT_ONCE], place)
            place, buffer = place + written, buffer[written:]  # noqa: PLW2901


def _got(descriptor: int, size: int, place: int) -> bytes:
    """So many bytes from there; EOFError where the file has fewer."""
    parts = []
    while size:
        part = os.pread(descriptor, min(size, _AT_ONCE), place)
        if not part:
            raise EOFError
        parts.append(part)
        place, size = place + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
