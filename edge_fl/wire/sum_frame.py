"""The frame of a partial sum: what several updates come to, as whole numbers (docs/protocol.md, section 2.5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.wire.sections import open_frame, sealed_frame

__all__ = ["MOST_BITS", "PartialSum", "SumHeader", "TensorSum", "decode_sum", "encode_sum"]

MOST_BITS = 62
"""No sum, of however many parts, reaches ``2^62``."""

_MAGIC = b"EFLS"
_ITEM = 8
_Positive = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
_Exponent = Annotated[int, msgspec.Meta(ge=-256, le=256)]


class SumHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a partial sum says of itself.

    It is of ``clients`` updates of a round, which count ``weight`` together. The sums of the layout's tensors, in their
    order, are ``2^exponents`` times the true ones. ``entries`` are the names of the tensors whose holders are counted
    for each entry, as columns are left out of some updates; of the others they are counted for each row.
    """

    run: str
    round: Annotated[int, msgspec.Meta(ge=0)]
    layout: str
    clients: _Positive
    weight: _Positive
    exponents: tuple[_Exponent, ...]
    entries: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorSum:
    """The sum of a tensor as a matrix ``[R, S]``, of the ``rows`` ``[r]`` that somebody holds.

    ``holders`` ``[r, 1]`` or ``[r, S]`` is what those who hold a row, or an entry, count together. ``total`` is
    ``[r, S]``. All are int64.
    """

    rows: NDArray[np.int64]
    holders: NDArray[np.int64]
    total: NDArray[np.int64]


@dataclass(frozen=True)
class PartialSum:
    """A decoded partial sum, by tensor."""

    header: SumHeader
    tensors: dict[str, TensorSum]


def encode_sum(header: SumHeader, layout: Layout, tensors: Mapping[str, TensorSum]) -> bytes:
    """Encode the sums of all the tensors of ``layout``; the header's ``entries`` and ``layout`` are filled in."""
    sums = [(tensor, tensors[tensor.name]) for tensor in layout.tensors]
    each = tuple(tensor.name for tensor, held in sums if _by_entry(tensor, held))
    head = msgspec.msgpack.encode(msgspec.structs.replace(header, layout=layout.digest, entries=each))
    mask = b"".join(_mask(tensor, held.rows) for tensor, held in sums)
    arrays = [array for _, held in sums for array in (held.holders, held.total)]
    return sealed_frame(_MAGIC, head, mask, [np.ascontiguousarray(array, dtype="<i8") for array in arrays])


def decode_sum(data: bytes | memoryview, layout: Layout) -> PartialSum:
    """Decode and check a partial sum of updates for ``layout``. Its arrays are views of ``data``.

    Raises
    ------
    FrameError
        With the code ``truncated``, ``magic``, ``version``, ``checksum``, ``header``, ``layout``, ``mask`` or
        ``values``.
    """
    sections = open_frame(memoryview(data), _MAGIC)
    try:
        header = msgspec.msgpack.decode(sections.head, type=SumHeader)
    except UNREADABLE as error:
        raise FrameError("header", f"The partial sum's header cannot be read: {error}.") from error
    if header.layout != layout.digest:
        raise FrameError("layout", f"The partial sum is for layout {header.layout}, not {layout.digest}.")
    if len(header.exponents) != len(layout.tensors):
        raise FrameError(
            "header",
            f"The partial sum has {len(header.exponents)} exponents for {len(layout.tensors)} tensors.",
        )
    rows = _rows(sections.mask, layout)
    by_entry = [tensor.name in header.entries and tensor.matrix[1] > 1 for tensor in layout.tensors]
    if [tensor.name for tensor, each in zip(layout.tensors, by_entry, strict=True) if each] != list(
        header.entries
    ):
        raise FrameError("header", "The partial sum counts the holders of tensors that the layout has not.")
    shapes = [
        (len(kept), tensor.matrix[1] if each else 1, tensor.matrix[1])
        for tensor, kept, each in zip(layout.tensors, rows, by_entry, strict=True)
    ]
    size = sum(_ITEM * count * (across + columns) for count, across, columns in shapes)
    if len(sections.values) != size:
        raise FrameError(
            "values", f"The partial sum has {len(sections.values)} bytes of values in place of {size}."
        )
    found, start = {}, 0
    values = np.frombuffer(sections.values, dtype="<i8")
    for tensor, kept, (count, across, columns) in zip(layout.tensors, rows, shapes, strict=True):
        middle = start + count * across
        end = middle + count * columns
        held = TensorSum(
            kept, values[start:middle].reshape(count, across), values[middle:end].reshape(count, columns)
        )
        _check(tensor, held, header.weight)
        found[tensor.name], start = held, end
    return PartialSum(header, found)


def _by_entry(tensor: Tensor, held: TensorSum) -> bool:
    return tensor.matrix[1] > 1 and held.holders.shape[1] > 1


def _mask(tensor: Tensor, rows: NDArray[np.int64]) -> bytes:
    """Bit i mod 8, lowest first, of byte i // 8 says whether somebody holds row i."""
    kept = np.zeros(tensor.matrix[0], dtype=np.bool_)
    kept[rows] = True
    return np.packbits(kept, bitorder="little").tobytes()


def _rows(mask: memoryview, layout: Layout) -> list[NDArray[np.int64]]:
    sizes = [-(-tensor.matrix[0] // 8) for tensor in layout.tensors]
    if len(mask) != sum(sizes):
        raise FrameError("mask", f"The partial sum's mask has {len(mask)} bytes in place of {sum(sizes)}.")
    found, start = [], 0
    for tensor, size in zip(layout.tensors, sizes, strict=True):
        bits = np.unpackbits(np.frombuffer(mask[start : start + size], np.uint8), bitorder="little")
        if bits[tensor.matrix[0] :].any():
            raise FrameError("mask", f"The partial sum's mask has bits beyond the rows of '{tensor.name}'.")
        found.append(np.flatnonzero(bits))
        start += size
    return found


def _check(tensor: Tensor, held: TensorSum, weight: int) -> None:
    """Whoever holds something counts, and no more than all; sums are none that parts of 2^62 could not have."""
    if held.holders.size and not (held.holders.min() >= 0 and held.holders.max() <= weight):
        raise FrameError("values", f"The holders of '{tensor.name}' count less than 0, or more than all.")
    if not held.holders.any(axis=1).all():
        raise FrameError("mask", f"The partial sum holds a row of '{tensor.name}' that nobody holds.")
    most = 1 << MOST_BITS
    if held.total.size and not (-most < held.total.min() and held.total.max() < most):
        raise FrameError("values", f"The sum of '{tensor.name}' is beyond 2^{MOST_BITS}.")
    if held.total[~np.broadcast_to(held.holders > 0, held.total.shape)].any():
        raise FrameError("values", f"The sum of '{tensor.name}' is not 0 where nobody holds an entry.")
