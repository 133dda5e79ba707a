"""A bundle's frozen tensors: one file, which devices fetch once and map into memory, so that all who train share it.

The file is the tensors of ``Layout.frozen`` in order, little-endian and C-contiguous, each from a multiple of 64 bytes.
Behind them are those of ``Layout.personal``, as each device's training of them starts.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import BundleError
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import kept_entries

__all__ = ["FROZEN", "INT8_SCALE", "FrozenTensors", "count_frozen", "cut_frozen", "frozen_size", "pack_frozen"]

FROZEN = "frozen.bin"
"""The file's path in a bundle."""
INT8_SCALE = "/int8_scale"
"""What the name of a tensor ends in that has the scales of the rows of one in int8; no module gives such a name."""
_ALIGNED = 64  # what vector units read at once


class FrozenTensors:
    """The frozen tensors of a layout, as they lie in a file that is mapped into memory.

    Parameters
    ----------
    path
        The file; not looked at where the layout has no such tensor.
    layout
        What is in it.

    Raises
    ------
    BundleError
        When the file cannot be mapped, or has another size.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self._layout = layout
        self._whole: dict[str, NDArray[Any]] = {}
        self._personal: dict[str, NDArray[np.float32]] = {}
        if not frozen_size(layout):
            return
        try:
            # Private and writable, so that no runtime copies what it could only read; nobody writes.
            content = np.memmap(path, dtype=np.uint8, mode="c")
        except (OSError, ValueError) as error:
            raise BundleError(f"The bundle's file '{path}' cannot be mapped: {error}.") from error
        if len(content) != frozen_size(layout):
            raise BundleError(f"The bundle's file '{path}' has {len(content)} bytes, not {frozen_size(layout)}.")
        for tensor, start in _places(layout):
            held = content[start : start + _bytes(tensor)].view(_dtype(tensor))
            found = self._whole if tensor.role == "frozen" else self._personal
            found[tensor.name] = held.reshape(tensor.shape).view(np.ndarray)

    @property
    def personal(self) -> Mapping[str, NDArray[np.float32]]:
        """Every personal tensor by its name, uncopied: what a device's training of it starts from."""
        return self._personal

    @property
    def whole(self) -> Mapping[str, NDArray[Any]]:
        """Every frozen tensor by its name, uncopied."""
        return self._whole

    def kept(self, pattern: Pattern) -> dict[str, NDArray[Any]]:
        """What ``pattern`` leaves of every tensor: itself, or a C-contiguous copy without dropped units' columns."""
        return cut_frozen(self._whole, pattern)


def cut_frozen(arrays: Mapping[str, NDArray[Any]], pattern: Pattern) -> dict[str, NDArray[Any]]:
    """The same of any ``arrays`` of the layout's frozen tensors, by name."""
    return {tensor.name: kept_entries(tensor, pattern, arrays[tensor.name]) for tensor in pattern.layout.frozen}


def pack_frozen(layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The file for these ``arrays`` by name, which have the layout's shapes and dtypes."""
    packed = bytearray(frozen_size(layout))
    for tensor, start in _places(layout):
        array = np.ascontiguousarray(arrays[tensor.name], dtype=_dtype(tensor))
        packed[start : start + _bytes(tensor)] = array.tobytes()
    return bytes(packed)


def count_frozen(layout: Layout) -> int:
    """How many numbers of the model are frozen: scales are none of them."""
    return sum(tensor.size for tensor in layout.frozen if not tensor.name.endswith(INT8_SCALE))


def frozen_size(layout: Layout) -> int:
    """Bytes of the file."""
    end = 0
    for tensor, start in _places(layout):
        end = start + _bytes(tensor)
    return end


def _places(layout: Layout) -> Iterator[tuple[Tensor, int]]:
    start = 0
    for tensor in (*layout.frozen, *layout.personal):
        yield tensor, start
        start += -(-_bytes(tensor) // _ALIGNED) * _ALIGNED


def _dtype(tensor: Tensor) -> "np.dtype[Any]":
    return np.dtype(tensor.dtype).newbyteorder("<")


def _bytes(tensor: Tensor) -> int:
    return tensor.size * _dtype(tensor).itemsize
