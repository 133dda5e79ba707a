"""The value section of a frame: the kept entries of every tensor, in the layout's order, in C order.

Either all of them as float32, or the parameters as a compressor wrote them or only some of them
(:mod:`edge_fl.wire.sparse`), followed by the statistics as float32. An update may leave statistics out, which then are
zeros: no change. Or no values at all: those that secure aggregation sums.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import FrameError, RunError
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.selection import Selection, Weights
from edge_fl.wire.context import Context, Decoder, Vector
from edge_fl.wire.sparse import SPARSE, decode_sent

__all__ = [
    "FLOAT32",
    "WITHHELD",
    "Values",
    "decode_values",
    "flatten",
    "flattened",
    "float_tensors",
    "floats_of",
    "unflatten",
    "values_size",
]

FLOAT32 = "float32"
WITHHELD = "withheld"
"""What the header calls a section without any."""

_ITEM = 4
_ZEROS = np.zeros(1 << 16, dtype=np.float32)  # as many as are checked at a time


@dataclass(frozen=True)
class Values:
    """The kept entries of every tensor, and which of the parameters' were sent.

    ``sent`` is ``[n]``, by their place in the vector that :func:`flatten` makes; None where all were.
    """

    kept: dict[str, NDArray[np.float32]]
    sent: NDArray[np.bool_] | None = None


def values_size(selection: Selection, compressed: bytes | None = None, *, statistics: bool = True) -> int:
    """Bytes of the value section under ``selection``, float32 or ``compressed``, with its ``statistics`` or without."""
    floats = float_tensors(selection.layout, compressed, statistics=statistics)
    return len(compressed or b"") + _ITEM * _count(selection, floats)


def float_tensors(layout: Layout, compressed: bytes | None = None, *, statistics: bool = True) -> Sequence[Tensor]:
    """The tensors whose kept entries a value section has as float32, in their order, behind what is ``compressed``."""
    if compressed is None:
        return layout.tensors if statistics else layout.parameters
    return layout.statistics if statistics else ()


def floats_of(layout: Layout, kept: Weights) -> bytes:
    """A value section of float32 alone: the ``kept`` entries of every tensor, an array each."""
    arrays = (np.ascontiguousarray(kept[tensor.name], dtype="<f4") for tensor in layout.tensors)
    return b"".join(array.reshape(-1).view(np.uint8).data for array in arrays)


def decode_values(
    encoding: str,
    section: memoryview,
    context: Context,
    decoders: Mapping[str, Decoder],
    *,
    statistics: bool = True,
) -> Values:
    """The entries that ``context`` keeps; views of ``section`` where it is float32, and none where it is ``withheld``.

    ``decoders`` read what is neither float32 nor ``sparse``. A section without ``statistics`` has zeros for them.

    Raises
    ------
    FrameError
        ``values`` when the encoding is unknown or the section is not what the selection needs, ``not-finite`` on
        NaN or infinity.
    """
    selection = context.selection
    if encoding == WITHHELD:
        if len(section):
            raise FrameError("values", f"The value section has {len(section)} bytes where none belong.")
        return Values({})
    if encoding == FLOAT32:
        expected = values_size(selection, statistics=statistics)
        if len(section) != expected:
            raise FrameError("values", f"The value section has {len(section)} bytes where {expected} belong.")
        travelling = float_tensors(selection.layout, statistics=statistics)
        values = Values(_split(np.frombuffer(section, dtype="<f4"), selection, travelling))
    elif encoding == SPARSE or encoding in decoders:
        decoder = None if encoding == SPARSE else decoders[encoding]
        values = _decode_encoded(encoding, section, context, decoder, statistics=statistics)
    else:
        raise FrameError("values", f"The values are encoded as '{encoding[:40]}', which this edge-fl cannot read.")
    with np.errstate(invalid="ignore"):
        for name, tensor in values.kept.items():
            _check_finite(tensor.reshape(-1), name)
    if not statistics:
        absent = {t.name: np.zeros(selection.shape(t), dtype=np.float32) for t in selection.layout.statistics}
        values.kept.update(absent)
    return values


def _decode_encoded(
    encoding: str, section: memoryview, context: Context, decoder: Decoder | None, *, statistics: bool
) -> Values:
    """The parameters as ``decoder`` reads them (None: ``sparse``), and the statistics after them."""
    selection = context.selection
    behind = selection.layout.statistics if statistics else ()
    size = _ITEM * _count(selection, behind)
    if len(section) < size:
        raise FrameError("values", f"The value section has {len(section)} bytes, fewer than its statistics.")
    split = len(section) - size
    if decoder is None:
        vector, sent = decode_sent(section[:split], context.count)
    else:
        vector, sent = decoder(section[:split], context), None
        _check_decoded(vector, context.count, encoding)
    kept = unflatten(vector, selection)
    kept |= _split(np.frombuffer(section[split:], dtype="<f4"), selection, behind)
    return Values(kept, sent)


def _check_decoded(vector: object, count: int, encoding: str) -> None:
    """Raise RunError where a decoder, which is code of this machine, gave anything but ``[count]`` numbers."""
    if isinstance(vector, np.ndarray) and vector.shape == (count,) and vector.dtype.kind == "f":
        return
    given = f"{vector.dtype} {vector.shape}" if isinstance(vector, np.ndarray) else type(vector).__name__
    raise RunError(f"decompress() of '{encoding[:40]}' gives floats ({count},), not {given}.")


def flatten(selection: Selection, tensors: Weights) -> Vector:
    """The kept entries of every parameter tensor as one vector, in the layout's order, of full ``tensors``."""
    layout = selection.layout
    return flattened(layout, {t.name: selection.kept(t, tensors[t.name]) for t in layout.parameters})


def flattened(layout: Layout, kept: Weights) -> Vector:
    """As :func:`flatten`, of the ``kept`` entries, an array for each tensor."""
    nothing = np.empty(0, dtype=np.float32)
    parts = [nothing, *(kept[tensor.name].reshape(-1) for tensor in layout.parameters)]
    return np.concatenate(parts, dtype=np.float32)


def unflatten(vector: Vector, selection: Selection) -> dict[str, NDArray[np.float32]]:
    """The reverse of :func:`flattened`: kept entries by tensor, as views of ``vector``."""
    return _split(vector, selection, selection.layout.parameters)


def _count(selection: Selection, tensors: Sequence[Tensor]) -> int:
    return sum(math.prod(selection.shape(tensor)) for tensor in tensors)


def _split(
    flat: NDArray[np.float32], selection: Selection, tensors: Sequence[Tensor]
) -> dict[str, NDArray[np.float32]]:
    kept, start = {}, 0
    for tensor in tensors:
        shape = selection.shape(tensor)
        count = math.prod(shape)
        kept[tensor.name] = flat[start : start + count].reshape(shape)
        start += count
    return kept


def _check_finite(numbers: NDArray[np.float32], name: str) -> None:
    # Zero times a finite number is zero, times anything else NaN: a dot product tells at the speed of memory. The
    # caller has numpy ignore that (errstate), once for all tensors.
    for start in range(0, len(numbers), len(_ZEROS)):
        stretch = numbers[start : start + len(_ZEROS)]
        if not np.dot(stretch, _ZEROS[: len(stretch)]) == 0.0:
            raise FrameError("not-finite", f"Tensor '{name}' holds a NaN or an infinity.")
