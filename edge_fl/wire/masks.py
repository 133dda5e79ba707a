"""The mask section of a frame: a pattern as packed bits, as a prefix width, or as a seed."""

import struct
from typing import Literal

import numpy as np

from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern, Prefix, Seeded

__all__ = ["MaskEncoding", "decode_mask", "encode_mask"]

MaskEncoding = Literal["bitmask", "prefix", "seed"]

_PREFIX = struct.Struct("<H")
_SEED = struct.Struct("<QH")


def encode_mask(pattern: Pattern) -> tuple[MaskEncoding, bytes]:
    """The shortest exact description of ``pattern``: its width or seed where it has one, else its bits."""
    match pattern.origin:
        case Prefix(width=width):
            return "prefix", _PREFIX.pack(width)
        case Seeded(key=key, dropout=dropout):
            return "seed", _SEED.pack(key, dropout)
        case _:
            return "bitmask", np.packbits(pattern.mask, bitorder="little").tobytes()


def decode_mask(encoding: MaskEncoding, section: bytes | memoryview, layout: Layout) -> Pattern:
    """The pattern that ``section`` tells; raises FrameError (``mask``) when it tells none."""
    expected = {"prefix": _PREFIX.size, "seed": _SEED.size, "bitmask": -(-layout.units // 8)}[encoding]
    if len(section) != expected:
        raise FrameError("mask", f"The {encoding} mask has {len(section)} bytes where {expected} belong.")
    if encoding == "prefix":
        (width,) = _PREFIX.unpack(section)
        _check_range("width", width, 1, 1000)
        return Pattern.prefix(layout, width)
    if encoding == "seed":
        key, dropout = _SEED.unpack(section)
        _check_range("dropout rate", dropout, 0, 999)
        return Pattern.seeded(layout, dropout, key)
    bits = np.unpackbits(np.frombuffer(section, dtype=np.uint8), bitorder="little")
    if bits[layout.units :].any():
        raise FrameError("mask", "The bitmask sets bits beyond the last unit.")
    return Pattern(layout, bits[: layout.units].astype(np.bool_))


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise FrameError("mask", f"The mask's {what} is {value}, not one of {low} to {high} thousandths.")
