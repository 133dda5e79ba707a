"""Both ends of a pipe between this machine's processes, beside which large buffers go through files."""

import os
import pickle
import tempfile
from collections.abc import Iterable, Sequence
from io import BytesIO
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import msgspec

from edge_fl.core.errors import RunError
from edge_fl.training.update import Update

__all__ = ["Channel", "ready_among"]

_SMALL = 1 << 12  # bytes of a buffer that the pipe may as well carry
_AT_ONCE = 1 << 30  # bytes of one read or write: Linux takes 2 GiB at most


class Channel:
    """Sends and receives what can be pickled, as a :class:`~multiprocessing.connection.Connection` does.

    A pipe takes in some 200 kB at a time, and wakes the other process for each. So arrays and updates' frames are
    written into a temporary file, and the pipe says how long they are. Each end has ``files`` of these, and takes them
    in turn: it sends at most so many messages before the other end has received the first of them. The end that
    receives removes a file's name as it opens the file, so killed processes leave no file behind.

    Parameters
    ----------
    connection
        One end of the pipe; the other process has a channel for the other.
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
        self._sent = self._received = 0

    def send(self, value: object) -> None:
        """Send it; OSError where the other process is no more, RunError where a file cannot be written."""
        stream, buffers = BytesIO(), list[memoryview]()
        _Pickler(stream, buffers).dump(value)
        try:
            path = self._write(self._sent % self._files, buffers) if buffers else ""
        except OSError as error:
            raise RunError(
                f"Updates cannot be written to {tempfile.gettempdir()}: {error.strerror}. Free some space there, or "
                "name another folder in TMPDIR."
            ) from error
        sizes = [(len(buffer), buffer.readonly) for buffer in buffers]
        self.connection.send((path, sizes, stream.getvalue()))
        self._sent += 1

    def receive(self) -> Any:
        """What the other process sent next; EOFError or OSError where that process is no more."""
        path, sizes, pickled = self.connection.recv()
        place = self._received % self._files
        self._received += 1
        if path:
            self._read[place] = os.open(path, os.O_RDONLY)
            Path(path).unlink()
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

    def _write(self, place: int, buffers: Sequence[memoryview]) -> str:
        """Write them one after another; gives the path of a file that the other end has yet to open."""
        if place in self._written:
            _put(self._written[place], buffers)
            return ""
        descriptor, path = tempfile.mkstemp(prefix="edge-fl-")
        try:
            _put(descriptor, buffers)
        except OSError:
            os.close(descriptor)
            Path(path).unlink()
            raise
        self._written[place] = descriptor
        return path


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
        if len(raw) < _SMALL:
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
