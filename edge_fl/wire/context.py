"""What both ends know of a value section before they write or read it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.selection import Selection

__all__ = ["Context", "Decoder", "Vector"]

_Scalar = TypeVar("_Scalar", bound=np.generic)

Vector = NDArray[np.float32]
"""``[n]`` float32: one number for each kept entry."""


@dataclass(frozen=True)
class Context:
    """What both ends of the wire know of an update before they write or read its section.

    ``selection`` says which entries are kept, ``shared`` is what the compressor's server half sent with the model of
    the round (:class:`edge_fl.compressors.base.Shares`).
    """

    selection: Selection
    round: int
    shared: bytes = b""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many entries of each parameter tensor are kept, in the layout's order."""
        selection = self.selection
        return tuple(math.prod(selection.shape(tensor)) for tensor in selection.layout.parameters)

    @property
    def count(self) -> int:
        """How many parameter entries are kept: n, the length of the vector that is compressed."""
        return sum(self.sizes)

    def kept(self, full: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """The kept ones, ``[n]``, of a number for each entry of the full model's parameters."""
        parts, start = [full[:0]], 0
        for tensor in self.selection.layout.parameters:
            whole = full[start : start + tensor.size].reshape(tensor.shape)
            parts.append(whole[self.selection.index(tensor)].reshape(-1))
            start += tensor.size
        return np.concatenate(parts)


Decoder = Callable[[memoryview, Context], Vector]
"""Reads a section: ``[n]`` numbers, or FrameError (``values``) where nobody can have written it."""
