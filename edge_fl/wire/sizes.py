"""What a layout leaves at a width: trained numbers, and the bytes of an update's frame."""

import math
from dataclasses import dataclass

from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Bitmask, Pattern
from edge_fl.core.selection import Selection
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.values import values_size

__all__ = ["Size", "pattern_at", "size_at"]


@dataclass(frozen=True)
class Size:
    """At ``width`` (thousandths): trained numbers of the compact model, and the bytes of an uncompressed update with
    a bitmask in each mode.
    """

    width: int
    parameters: int
    rows: int
    units: int


def pattern_at(layout: Layout, width: int) -> Pattern:
    """The first ``ceil(width * J_b / 1000)`` units of each block, told by their bits; as many others weigh the same."""
    return Pattern(layout, Pattern.prefix(layout, width).mask, Bitmask())


def size_at(layout: Layout, width: int) -> Size:
    """The sizes at a width.

    Frames are those of a run and a method with short names: each character more of these is a byte more.
    """
    pattern = pattern_at(layout, width)
    compact = Selection.of(pattern, "units")
    return Size(
        width=width,
        parameters=sum(math.prod(compact.shape(tensor)) for tensor in layout.parameters),
        rows=_frame_bytes(pattern, "rows"),
        units=_frame_bytes(pattern, "units"),
    )


def _frame_bytes(pattern: Pattern, mode: Mode) -> int:
    """An encoded frame without its values, and these by their count, so that no large array is filled for it."""
    header = Header("update", run="inspect", round=1, version=0, layout="", method="inspect", mode=mode)
    blocks = Layout(pattern.layout.blocks, ())
    empty = encode_frame(header, Pattern(blocks, pattern.mask, pattern.origin), {})
    return len(empty) + values_size(Selection.of(pattern, mode))
