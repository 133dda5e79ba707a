"""Files through which two processes of one machine pass the large buffers of a message, and of its answer."""

import os
import pickle
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from edge_fl.core.errors import RunError
from edge_fl.training.update import Update

__all__ = ["BufferFiles", "Packed"]

_SMALL = 1 << 12  # bytes of a buffer that the pickle may as well hold
_AT_ONCE = 1 << 30  # bytes of one read or write: Linux takes 2 GiB at most


class Packed(NamedTuple):
    """What is left of a message without its large buffers.

    ``sizes`` has the bytes of each buffer, in their order in file number ``place``, and whether it is readonly.
    """

    pickle: bytes
    place: int
    sizes: list[tuple[int, bool]]


class BufferFiles:
    """One end of them: arrays and updates' frames go through a file, the rest of a message through something else.

    A pipe takes in some 200 kB at a time, and wakes the other process for each; Ray's object store costs more. One
    process makes the files. The other opens them, and takes their names away, so that they end with both processes.
    One of the two asks, the other answers. A file holds one message under way, and then its answer.

    Parameters
    ----------
    descriptors
        Of the same files at both ends, in the same order.
    folder
        Where the other end finds the files until it opens them; None at that end.
    """

    def __init__(self, descriptors: Sequence[int], folder: Path | None = None) -> None:
        self._descriptors, self.folder = list(descriptors), folder
        self._free = list(range(len(descriptors)))

    @classmethod
    def make(cls, count: int, root: Path | None = None) -> "BufferFiles":
        """Make files for so many messages under way, in a new folder in ``root``, or in that for temporary files.

        RunError where they cannot be made.
        """
        try:
            folder = Path(tempfile.mkdtemp(prefix="edge-fl-", dir=root))  # nobody else may look into it
        except OSError as error:
            raise _no_room(error) from error
        try:
            return cls(_opened([folder / str(place) for place in range(count)], os.O_CREAT | os.O_EXCL), folder)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise _no_room(error) from error

    @classmethod
    def open(cls, folder: Path) -> "BufferFiles":
        """Open what another process made; OSError where there is no such folder here, or none that may be read."""
        opened = cls(_opened(sorted(folder.iterdir(), key=lambda name: int(name.name)), 0))
        shutil.rmtree(folder, ignore_errors=True)
        return opened

    def ask(self, message: object) -> Packed:
        """Put a message's buffers into a file that holds nothing now.

        RunError where it has no room for them, IndexError where every file holds a message under way.
        """
        packed = self._packed(message, self._free[-1])
        self._free.pop()
        return packed

    def take(self, packed: Packed) -> Any:
        """The message; EOFError where its file has less than it says."""
        start, buffers = 0, list[bytes | bytearray]()
        for size, readonly in packed.sizes:
            got = _got(self._descriptors[packed.place], size, start)
            buffers.append(got if readonly else bytearray(got))
            start += size
        return pickle.loads(packed.pickle, buffers=buffers)

    def answer(self, answer: object, packed: Packed) -> Packed:
        """Put an answer's buffers where those of the message were; RunError where there is no room for them."""
        return self._packed(answer, packed.place)

    def take_back(self, packed: Packed) -> Any:
        """The answer, whose file may be used again; EOFError where it has less than the answer says."""
        value = self.take(packed)
        self._free.append(packed.place)
        return value

    def close(self) -> None:
        """Leave nothing here; twice is as good as once."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _packed(self, value: object, place: int) -> Packed:
        stream, buffers = BytesIO(), list[memoryview]()
        _Pickler(stream, buffers).dump(value)
        try:
            _put(self._descriptors[place], buffers)
        except OSError as error:
            raise _no_room(error) from error
        return Packed(stream.getvalue(), place, [(len(buffer), buffer.readonly) for buffer in buffers])


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


def _opened(names: Iterable[Path], flags: int) -> list[int]:
    """A descriptor of each; OSError, and none, where one cannot be opened."""
    descriptors: list[int] = []
    try:
        for name in names:
            descriptors.append(os.open(name, os.O_RDWR | flags, 0o600))  # noqa: PERF401  (those before it are closed)
    except OSError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return descriptors


def _no_room(error: OSError) -> RunError:
    return RunError(
        f"A temporary file of the simulation's processes cannot be written: {error.strerror}. Free some space in the "
        "folder for temporary files, or name another in TMPDIR."
    )


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
