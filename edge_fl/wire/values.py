"""The value section of a frame: the kept entries of every tensor, in the layout's order, in C order."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_fl.errors import FrameError
from edge_fl.selection import Selection, Weights

__all__ = ["ValueEncoding", "decode_values", "encode_values_into", "values_size"]

ValueEncoding = Literal["float32"]

_ITEM = 4
_ZEROS = np.zeros(1 << 16, dtype=np.float32)  # as many as are checked at a time


def values_size(selection: Selection) -> int:
    """Bytes of the float32 value section under ``selection``."""
    return _ITEM * sum(math.prod(selection.shape(t)) for t in selection.layout.tensors)


def encode_values_into(out: memoryview, selection: Selection, tensors: Weights) -> None:
    """Write the kept entries of the full ``tensors`` as little-endian float32 into ``out``, in one pass."""
    flat, start = np.frombuffer(out, dtype="<f4"), 0
    for tensor in selection.layout.tensors:
        shape = selection.shape(tensor)
        count = math.prod(shape)
        selection.gather_into(tensor, tensors[tensor.name], flat[start : start + count].reshape(shape))
        start += count


def decode_values(section: memoryview, selection: Selection) -> dict[str, NDArray[np.float32]]:
    """The kept entries as views of ``section``.

    Raises
    ------
    FrameError
        ``values`` when the section has another length than the selection, ``not-finite`` on NaN or infinity.
    """
    expected = values_size(selection)
    if len(section) != expected:
        raise FrameError("values", f"The value section has {len(section)} bytes where {expected} belong.")
    flat, start, kept = np.frombuffer(section, dtype="<f4"), 0, {}
    for tensor in selection.layout.tensors:
        shape = selection.shape(tensor)
        count = math.prod(shape)
        kept[tensor.name] = flat[start : start + count].reshape(shape)
        _check_finite(flat[start : start + count], tensor.name)
        start += count
    return kept


def _check_finite(numbers: NDArray[np.float32], name: str) -> None:
    # Zero times a finite number is zero, times anything else NaN: a dot product tells at the speed of memory.
    with np.errstate(invalid="ignore"):
        for start in range(0, len(numbers), len(_ZEROS)):
            stretch = numbers[start : start + len(_ZEROS)]
            if not np.dot(stretch, _ZEROS[: len(stretch)]) == 0.0:
                raise FrameError("not-finite", f"Tensor '{name}' holds a NaN or an infinity.")
