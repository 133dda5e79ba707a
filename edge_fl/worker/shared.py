"""Memory that two processes map, of which one writes and the other reads: arrays cross in a copy, and at once."""

import fcntl
import math
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Shared", "make_shared"]

_ALIGN = 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL  # or touching it could end this process


def make_shared(size: int) -> int:
    """A file descriptor of ``size`` bytes of memory, none of which is taken before it is written to."""
    descriptor = os.memfd_create("edge-fl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


class Shared:
    """The memory behind ``descriptor``, mapped here."""

    def __init__(self, descriptor: int) -> None:
        self._bytes = np.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), dtype=np.uint8)

    def takes(self, sizes: Sequence[int]) -> bool:
        """Whether arrays of so many bytes fit in it together."""
        return sum(_aligned(size) for size in sizes) <= self._bytes.size

    def write(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Put arrays there in place of what was there, each C-contiguous, one behind the other."""
        start = 0
        for array in arrays:
            if array.size:
                self._bytes[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
            start += _aligned(array.nbytes)

    def read(self, kinds: Sequence[tuple[str, tuple[int, ...]]]) -> list[NDArray[Any]]:
        """What was put there, by dtype and shape, where it lies: until the other process puts something else there."""
        arrays: list[NDArray[Any]] = []
        start = 0
        for dtype, shape in kinds:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            arrays.append(self._bytes[start : start + size].view(dtype).reshape(shape))
            start += _aligned(size)
        return arrays


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
