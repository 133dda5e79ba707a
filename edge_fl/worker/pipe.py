"""Messages and arrays between an agent and the process of its bundle's programs.

A message is the length of its head (8 bytes, little-endian) and the head: msgpack of the message, of the dtype and
shape of each array, and of where their bytes are. These follow in C order, or lie in memory that both processes have.
"""

import math
import os
import selectors
import struct
import time
from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.worker.shared import Shared

__all__ = ["Ends", "Pipe", "Silent"]

_LENGTH = struct.Struct("<Q")
_LARGEST_HEAD = 32 << 20  # bytes: a task may carry a pattern of 16 MB
_AT_ONCE = 1 << 20  # bytes
_KEPT_ASIDE = 4096  # bytes
_Said = TypeVar("_Said")
_Heard = TypeVar("_Heard")
_Length = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class Silent(Exception):  # noqa: N818  (what it means is the caller's)
    """The other end did not answer in time."""


class _Array(msgspec.Struct, array_like=True, frozen=True):
    dtype: Literal["<f4", "<f8", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1"]
    shape: Annotated[tuple[_Length, ...], msgspec.Meta(max_length=32)]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class _Head(msgspec.Struct, array_like=True, frozen=True):
    message: msgspec.Raw
    arrays: tuple[_Array, ...]
    shared: bool


class Ends:
    """What one end reads and writes: file descriptors, which are its own from now on, and memory for arrays.

    ``beside`` is read meanwhile, so that its writer never waits.
    """

    def __init__(
        self, reads: int, writes: int, reads_shared: Shared, writes_shared: Shared, beside: int | None = None
    ) -> None:
        self.reads, self.writes, self.beside = reads, writes, beside
        self.reads_shared, self.writes_shared = reads_shared, writes_shared
        for each in (reads, writes, beside):
            if each is not None:
                os.set_blocking(each, False)

    def close(self) -> None:
        """Close the file descriptors."""
        for each in (self.reads, self.writes, self.beside):
            if each is not None:
                os.close(each)


class Pipe(Generic[_Said, _Heard]):
    """One end.

    Parameters
    ----------
    ends
        What it reads and writes.
    hears
        What a message from the other end is; anything else is a ValueError.
    largest
        The most bytes that the arrays of a message from there may have together.
    trusts
        Whether arrays may be used where they lie in shared memory, until this end has answered. An end that is not
        trusted could change them once they are checked.
    """

    def __init__(self, ends: Ends, hears: Any, *, largest: int = 2**40, trusts: bool = False) -> None:
        self._ends, self._trusts = ends, trusts
        self._decoder: msgspec.msgpack.Decoder[_Heard] = msgspec.msgpack.Decoder(hears)
        self._largest, self._until = largest, math.inf
        self._aside = b""

    def within(self, seconds: float) -> None:
        """Have all that follows end in so many seconds, else raise Silent."""
        self._until = time.monotonic() + seconds

    def say(self, message: _Said, arrays: Sequence[NDArray[Any]] = (), *, answered: bool = True) -> None:
        """Send a message; raises BrokenPipeError when the other end is gone.

        Arrays lie in shared memory until the next message. So they go through the pipe where no answer says that they
        were read, and where they are too large.
        """
        held = [np.ascontiguousarray(array) for array in arrays]
        kinds = tuple(_Array(array.dtype.str, array.shape) for array in arrays)  # type: ignore[arg-type]
        shared = answered and self._ends.writes_shared.takes([array.nbytes for array in held])
        head = msgspec.msgpack.encode(_Head(msgspec.Raw(msgspec.msgpack.encode(message)), kinds, shared))
        if shared:
            self._ends.writes_shared.write(held)
        self._write(memoryview(_LENGTH.pack(len(head)) + head))
        for array in () if shared else held:
            if array.size:
                self._write(array.reshape(-1).view(np.uint8).data)

    def hear(self) -> tuple[_Heard, list[NDArray[Any]]]:
        """Wait for a message.

        Raises
        ------
        EOFError
            When the other end is gone.
        ValueError
            When it says what no message is, or more than may be said.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > _LARGEST_HEAD:
            raise ValueError(f"a message has a head of {length} bytes")
        try:
            head = msgspec.msgpack.decode(self._read(length), type=_Head)
            message = self._decoder.decode(head.message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(str(error)) from error
        sizes = [array.size for array in head.arrays]
        if sum(sizes) > self._largest or (head.shared and not self._ends.reads_shared.takes(sizes)):
            raise ValueError("a message has larger arrays than it can have")
        if head.shared:
            arrays = self._ends.reads_shared.read([(array.dtype, array.shape) for array in head.arrays])
            return message, arrays if self._trusts else [array.copy() for array in arrays]
        arrays = [np.empty(array.shape, dtype=array.dtype) for array in head.arrays]
        for array in arrays:
            if array.size:
                self._read_into(array.reshape(-1).view(np.uint8).data)
        return message, arrays

    def drain(self) -> bytes:
        """The last of what was said beside since this was last asked."""
        while self._take_aside():
            pass
        found, self._aside = self._aside, b""
        return found

    def close(self) -> None:
        """Close this end."""
        self._ends.close()

    def _read(self, size: int) -> bytearray:
        held = bytearray(size)
        self._read_into(memoryview(held))
        return held

    def _read_into(self, into: memoryview) -> None:
        done = 0
        while done < len(into):
            try:
                count = os.readv(self._ends.reads, [into[done : done + _AT_ONCE]])
            except BlockingIOError:
                self._wait(self._ends.reads, selectors.EVENT_READ)
                continue
            if not count:
                raise EOFError
            done += count

    def _write(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            try:
                done += os.write(self._ends.writes, data[done : done + _AT_ONCE])
            except BlockingIOError:
                self._wait(self._ends.writes, selectors.EVENT_WRITE)

    def _wait(self, descriptor: int, event: int) -> None:
        """Until it can be read or written; raises Silent when that takes too long."""
        beside = self._ends.beside
        with selectors.PollSelector() as selector:
            selector.register(descriptor, event)
            if beside is not None:
                selector.register(beside, selectors.EVENT_READ)
            while True:
                left = self._until - time.monotonic()
                if left <= 0:
                    raise Silent
                found = {key.fd for key, _ in selector.select(min(left, 3600.0))}
                if beside in found and not self._take_aside() and beside is not None:
                    selector.unregister(beside)
                if descriptor in found:
                    return

    def _take_aside(self) -> bool:
        """Read what is there beside; False where there is nothing, or never will be."""
        if self._ends.beside is None:
            return False
        try:
            read = os.read(self._ends.beside, 1 << 16)
        except BlockingIOError:
            return False
        self._aside = (self._aside + read)[-_KEPT_ASIDE:]
        return bool(read)
