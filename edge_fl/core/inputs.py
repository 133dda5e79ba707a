"""What a model takes: one array a sample, or several by name, which stand one after another in one array.

Programs, frames and batches know the one array alone. Names, shapes and dtypes of several are in the manifest. The
first operations of every program cut the array up again.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import MOST_ENTRIES

__all__ = ["MOST_EXACT", "Input", "NamedInput", "pack", "packed_input", "places"]

MOST_EXACT = 1 << 24
"""Whole numbers up to this are exact in float32."""
_MOST_NAME = 256
MOST_INPUTS = 64


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sample of the model's input or target: shape without the batch axis, and dtype."""

    shape: tuple[int, ...]
    dtype: Literal["float32", "int64"]

    def __post_init__(self) -> None:
        if any(length < 1 for length in self.shape) or math.prod(self.shape) > MOST_ENTRIES:
            raise ValueError(f"a sample has 1 to {MOST_ENTRIES} numbers")


class NamedInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of a model's several inputs.

    Parameters
    ----------
    name
        As the model's ``forward`` calls it.
    shape
        Of one sample, without the batch axis.
    dtype
        As ``forward`` takes it.
    vocabulary
        Of tokens, how many there are (0: it is none, or nobody knows).
    """

    name: str
    shape: tuple[int, ...]
    dtype: Literal["float32", "int64", "bool"] = "float32"
    vocabulary: int = 0

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or len(self.name) > _MOST_NAME:
            raise ValueError(f"an input has a name of letters, digits and '_', of up to {_MOST_NAME} characters")
        if any(length < 1 for length in self.shape) or math.prod(self.shape) > MOST_ENTRIES:
            raise ValueError(f"an input has 1 to {MOST_ENTRIES} numbers")
        if not 0 <= self.vocabulary < 2**31:
            raise ValueError("a vocabulary has 0 to 2^31 - 1 tokens")

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def packed_input(inputs: Sequence[NamedInput]) -> Input:
    """The one array of several inputs: int64 where none is of float32; raises ValueError where names repeat."""
    if len({each.name for each in inputs}) != len(inputs) or not 0 < len(inputs) <= MOST_INPUTS:
        raise ValueError(f"a model has 1 to {MOST_INPUTS} inputs, each with a name of its own")
    return Input((sum(each.size for each in inputs),), _packed_dtype(each.dtype for each in inputs))


def places(inputs: Sequence[NamedInput]) -> dict[str, slice]:
    """Where each input stands in the one array."""
    found, start = {}, 0
    for each in inputs:
        found[each.name] = slice(start, start + each.size)
        start += each.size
    return found


def pack(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32] | NDArray[np.int64]:
    """Arrays ``[n, ...]`` of float32, int64 or bool as one ``[n, sum of sizes]``, in their order.

    Raises ValueError where whole numbers beside float32 are above :data:`MOST_EXACT`.
    """
    dtype = _packed_dtype(array.dtype.name for array in arrays.values())
    for name, array in arrays.items():
        if dtype == "float32" and array.dtype == np.int64 and array.size and np.abs(array).max() > MOST_EXACT:
            raise ValueError(f"'{name}' has whole numbers above {MOST_EXACT:,} beside numbers of float32")
    flat = [array.reshape(len(array), math.prod(array.shape[1:])).astype(dtype) for array in arrays.values()]
    packed: NDArray[np.float32] | NDArray[np.int64] = np.concatenate(flat, axis=1)
    return packed


def _packed_dtype(dtypes: Any) -> Literal["float32", "int64"]:
    return "float32" if "float32" in set(dtypes) else "int64"
