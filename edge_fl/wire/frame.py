"""The frame: a model or an update as bytes, self-describing and checksummed (docs/protocol.md, section 2)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout, Mode, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.wire.context import Context, Decoder
from edge_fl.wire.masks import MaskEncoding, decode_mask, encode_mask
from edge_fl.wire.sections import open_frame, sealed_frame
from edge_fl.wire.values import FLOAT32, WITHHELD, decode_values, float_tensors

__all__ = [
    "FRAME_OVERHEAD",
    "Frame",
    "Header",
    "decode_frame",
    "encode_frame",
    "encode_kept",
    "frame_header",
    "largest_frame",
]

FRAME_OVERHEAD = 1 << 16  # bytes that header and mask, but for what is shared, may add to the values of any frame
_MAGIC = b"EFLF"
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a frame says of itself.

    ``version`` is the number of rounds behind the model: of the model itself in a ``model`` frame, of the model
    that training started from in an ``update``, and of the model that it makes of the one before in a ``change``.
    ``values`` of an update and of a change are new weights minus old ones, those of ``statistics`` the means over a
    client's batches. ``shared`` is what a compressor's server
    half tells the devices with a model, opaque here; frames without it leave it out. ``unclipped`` says of a private
    update whether it was within the norm before it was clipped, where the task asks for it. An update that leaves
    BatchNorm's statistics out says so by ``without_statistics``; other frames leave that out.
    """

    kind: Literal["model", "update", "change", "statistics"]
    run: str
    round: _Count
    version: _Count
    layout: str
    method: str
    mode: Mode = "units"
    client: str = ""
    samples: _Count = 0
    loss: float = 0.0
    mask: MaskEncoding = "prefix"
    values: str = FLOAT32
    shared: bytes | msgspec.UnsetType = msgspec.UNSET
    unclipped: bool | msgspec.UnsetType = msgspec.UNSET
    without_statistics: Literal[True] | msgspec.UnsetType = msgspec.UNSET

    @property
    def has_statistics(self) -> bool:
        """Whether the values hold the statistics, too."""
        return self.without_statistics is msgspec.UNSET


@dataclass(frozen=True)
class Frame:
    """A decoded frame; ``values`` are the kept entries of each tensor, views of the bytes it came from.

    ``sent`` (``[n]``, in the order of the parameters' kept entries) says which of them the frame holds, where that is
    not all; the others are zero in ``values``.
    """

    header: Header
    pattern: Pattern
    selection: Selection
    values: dict[str, NDArray[np.float32]]
    sent: NDArray[np.bool_] | None = None

    @property
    def shared(self) -> bytes:
        """The header's, empty where it is left out."""
        return b"" if self.header.shared is msgspec.UNSET else self.header.shared


def largest_frame(layout: Layout) -> int:
    """The bytes that no frame exceeds: float32 values, 2 bits an entry for what is shared, and the rest."""
    return 4 * layout.size + layout.size // 4 + FRAME_OVERHEAD


def encode_frame(header: Header, pattern: Pattern, tensors: Weights, compressed: bytes | None = None) -> bytes:
    """Encode what ``pattern`` keeps of the full ``tensors``; the header's ``mask`` and ``layout`` are filled in.

    Parameters
    ----------
    header
        Its ``mode`` decides which columns travel with a row.
    tensors
        Full-size float32 arrays by name: weights for a ``model``, differences for an ``update``. They are not looked at
        where the header says that values are ``withheld``.
    compressed
        The parameters' kept entries as ``header.values`` (a compressor, or ``sparse``) wrote them; None to send
        float32.
    """
    selection = Selection.of(pattern, header.mode)
    floats = _floats(header, pattern.layout, compressed)
    kept = {tensor.name: selection.kept(tensor, tensors[tensor.name]) for tensor in floats}
    return encode_kept(header, pattern, kept, compressed)


def encode_kept(header: Header, pattern: Pattern, kept: Weights, compressed: bytes | None = None) -> bytes:
    """As :func:`encode_frame`, of float32 arrays by name that ``pattern`` ``kept`` in the header's ``mode``.

    Raises ValueError where one has another shape than what is kept of its tensor.
    """
    encoding, mask = encode_mask(pattern)
    header = msgspec.structs.replace(header, mask=encoding, layout=pattern.layout.digest)
    selection, values = Selection.of(pattern, header.mode), list[NDArray[np.float32]]()
    for tensor in _floats(header, pattern.layout, compressed):
        if (found := kept[tensor.name].shape) != (shape := selection.shape(tensor)):
            raise ValueError(f"'{tensor.name}' has the shape {found}, and {shape} of it is kept")
        values.append(np.ascontiguousarray(kept[tensor.name], dtype="<f4"))
    return sealed_frame(_MAGIC, msgspec.msgpack.encode(header), mask, [compressed or b"", *values])


def _floats(header: Header, layout: Layout, compressed: bytes | None) -> Sequence[Tensor]:
    if header.values == WITHHELD:
        return ()
    return float_tensors(layout, compressed, statistics=header.has_statistics)


def decode_frame(
    data: bytes | memoryview,
    layout: Layout,
    shared: bytes = b"",
    decoders: Mapping[str, Decoder] = MappingProxyType({}),
    *,
    travelled: bool = True,
) -> Frame:
    """Decode and check a frame made for ``layout``.

    Parameters
    ----------
    shared
        What the model frame shared that an update's training started from.
    decoders
        Read the values of compressors, by name; a frame of any other is refused (``values``).
    travelled
        Whether the bytes came from elsewhere, and may be damaged: the checksum of a frame that this process or a child
        of it made is not looked at.

    Raises
    ------
    FrameError
        With the code ``truncated``, ``magic``, ``version``, ``checksum``, ``header``, ``layout``, ``mask``,
        ``values`` or ``not-finite``.
    """
    parts = open_frame(memoryview(data), _MAGIC, checked=travelled)
    header = _header(parts.head)
    if not math.isfinite(header.loss):
        raise FrameError("not-finite", f"The frame's header gives the loss as {header.loss}.")
    if header.layout != layout.digest:
        raise FrameError("layout", f"The frame is for layout {header.layout}, not {layout.digest}.")
    if header.values == WITHHELD and header.kind != "update":
        raise FrameError("values", f"A {header.kind} withholds no values.")
    if not header.has_statistics and header.kind != "update":
        raise FrameError("values", f"A {header.kind} leaves no statistics out.")
    pattern = decode_mask(header.mask, parts.mask, layout)
    selection = Selection.of(pattern, header.mode)
    context = Context(selection, header.round, shared)
    values = decode_values(header.values, parts.values, context, decoders, statistics=header.has_statistics)
    return Frame(header, pattern, selection, values.kept, values.sent)


def frame_header(data: bytes | memoryview) -> Header:
    """What a frame says of itself, of which nothing is checked.

    Raises
    ------
    FrameError
        With the code ``truncated``, ``magic``, ``version`` or ``header``, where that cannot be read.
    """
    return _header(open_frame(memoryview(data), _MAGIC, checked=False).head)


def _header(head: memoryview) -> Header:
    try:
        return msgspec.msgpack.decode(head, type=Header)
    except UNREADABLE as error:
        raise FrameError("header", f"The frame's header cannot be read: {error}.") from error
