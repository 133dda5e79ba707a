"""Frames and their parts."""

import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, get_args

import msgspec
import numpy as np

from broker.acceptance import Expected, check_update
from edge_fl.aggregation.exact_sums import ExactSum, check_partial
from edge_fl.compressors.base import DECODERS, compressor_names, open_compressor
from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.core.selection import Selection
from edge_fl.recipes.recipe import open_recipe
from edge_fl.secure_aggregation.roster import decode_roster
from edge_fl.wire.context import Context
from edge_fl.wire.frame import Header, decode_frame, encode_frame
from edge_fl.wire.masks import MaskEncoding, decode_mask, encode_mask
from edge_fl.wire.positions import decode_block, decode_golomb
from edge_fl.wire.sparse import encode_sent
from edge_fl.wire.sum_frame import decode_sum
from edge_fl.wire.values import WITHHELD, decode_values
from fuzz.target import Prepared

__all__ = ["frame", "mask", "partial_sum", "positions", "roster", "sealed", "section", "update"]

_VECTORS = Path(__file__).parents[2] / "tests" / "vectors"
_MOST_ENTRIES = 1 << 16
_PLACES: Final[Mapping[str, Callable[..., np.ndarray]]] = {"golomb": decode_golomb, "block": decode_block}


def _layout() -> Layout:
    held = msgspec.json.decode((_VECTORS / "layout.json").read_bytes())
    return msgspec.convert(held["layout"], Layout)


def sealed(data: bytes) -> bytes:
    """A frame with the checksum that belongs to its bytes, so that later checks are reached."""
    checksum = zlib.crc32(data[28:], zlib.crc32(data[:24]))
    return data[:24] + struct.pack("<I", checksum) + data[28:]


def frame() -> Prepared:
    """A frame of any kind, compressed or not."""
    layout = _layout()

    def run(data: bytes) -> None:
        try:
            found = decode_frame(sealed(data), layout, decoders=DECODERS)
        except FrameError:
            return
        for tensor in layout.tensors if found.header.values != WITHHELD else ():
            values = found.values[tensor.name]
            assert values.shape == found.selection.shape(tensor)
            assert np.isfinite(values).all()

    return Prepared(run, [file.read_bytes() for file in sorted((_VECTORS / "frames").glob("*.bin"))])


def mask() -> Prepared:
    """A mask section; the first byte says of which encoding."""
    layout, encodings = _layout(), get_args(MaskEncoding)

    def run(data: bytes) -> None:
        try:
            pattern = decode_mask(encodings[data[0] % len(encodings)], data[1:], layout) if data else None
        except FrameError:
            return
        assert pattern is None or decode_mask(*encode_mask(pattern), layout) == pattern

    return Prepared(run, [bytes([n]) + bytes([1] * size) for n in range(3) for size in (1, 2, 10)])


def roster() -> Prepared:
    """The roster of a cohort, and what a member works out of it."""
    layout = _layout()
    seed = msgspec.json.decode((_VECTORS / "secure_aggregation.json").read_bytes())["roster"]

    def run(data: bytes) -> None:
        try:
            cohort = decode_roster(data, layout)
        except FrameError:
            return
        for tensor in layout.tensors:
            held = cohort.held(tensor, list(cohort.members), weighted=True)
            assert 0 <= held.min() <= held.max() <= cohort.weight
            assert cohort.exponent(tensor) <= 62
            assert cohort.thin(tensor, list(cohort.members)).shape == tensor.shape

    return Prepared(run, [bytes.fromhex(seed)])


def partial_sum() -> Prepared:
    """A worker's partial sum, merged with one that is right."""
    layout = _layout()
    seeds = [(_VECTORS / "sums" / f"{mode}.bin").read_bytes() for mode in ("rows", "units")]
    right = decode_sum(seeds[0], layout)
    names = (tensor.name for tensor in layout.tensors)
    exponents = dict(zip(names, right.header.exponents, strict=True))
    reach = dict.fromkeys(exponents, 64.0)

    def run(data: bytes) -> None:
        try:
            found = decode_sum(sealed(data), layout)
            check_partial(layout, found, reach)
        except FrameError:
            return
        total = ExactSum(layout, exponents)
        for part in (found, right):
            total.merge(part)
        for held in total.tensors().values():
            assert 0 <= held.holders.min(initial=0) <= held.holders.max(initial=0) <= total.weight

    return Prepared(run, seeds)


def positions(code: str) -> Prepared:
    """Coded positions: width, k and count, then the section."""
    fields, decode = struct.Struct("<BII"), _PLACES[code]

    def run(data: bytes) -> None:
        if len(data) < fields.size:
            return
        width, k, count = fields.unpack_from(data)
        count %= _MOST_ENTRIES
        try:
            found = decode(memoryview(data)[fields.size :], width=width, k=k, count=count)
        except FrameError:
            return
        assert len(found) == k
        assert (np.diff(found) > 0).all()
        assert not k or 0 <= found[0] <= found[-1] < count

    return Prepared(run, [fields.pack(w, k, 100) + bytes([0x5A] * 8) for w in (0, 2) for k in (1, 5)])


def section(name: str) -> Prepared:
    """A compressor's section; the first byte says how much of the model is kept."""
    layout = _layout()
    widths = [Selection.of(Pattern.prefix(layout, width), "rows") for width in (250, 500, 1000)]
    shared = b"" if name not in compressor_names() else _shared(name)

    def run(data: bytes) -> None:
        context = Context(widths[(data[0] if data else 0) % 3], 1, shared if data[:1] > b"\x80" else b"")
        try:
            statistics = data[:1] < b"\xc0"
            found = decode_values(name, memoryview(data)[1:], context, DECODERS, statistics=statistics)
        except FrameError:
            return
        assert all(np.isfinite(values).all() for values in found.kept.values())

    return Prepared(run, [bytes([n]) + _written(name, Context(widths[n % 3], 1)) for n in (0, 1, 2)])


def _shared(name: str) -> bytes:
    return struct.pack("<BI", 2, 3) + b"\x55\xaa" if name == "tcs" else b""


def _written(name: str, context: Context) -> bytes:
    values = np.linspace(-1, 1, context.count, dtype=np.float32)
    statistics = sum(int(np.prod(context.selection.shape(t))) for t in context.selection.layout.statistics)
    if name == "sparse":
        return encode_sent(values, values > 0) + bytes(4 * statistics)
    compressor = open_compressor(name, {})
    memory = {held: np.zeros_like(values) for held in compressor.memory}
    return compressor.compress(values, memory, context, Stream(1)).section + bytes(4 * statistics)


def update() -> Prepared:
    """What a coordinator asks of an update's bytes before it counts."""
    layout = _layout()
    recipe = open_recipe("fedbiad", {"dropout": [500]})
    header = Header(
        kind="update",
        run="r",
        round=4,
        version=3,
        layout="",
        method="fedbiad",
        mode="rows",
        client="a",
        samples=100,
        loss=1.0,
    )
    asked = Expected(
        client="a",
        run="r",
        round=4,
        version=3,
        samples=100,
        layout=layout,
        recipe=recipe,
        tier=0,
        max_change=1000.0,
    )
    delta = {t.name: np.full(t.shape, 0.01, np.float32) for t in layout.tensors}

    def run(data: bytes) -> None:
        try:
            found = check_update(sealed(data), asked)
        except FrameError:
            return
        assert found.header.client == "a"
        assert 1 <= found.header.samples <= 100

    seeds = [
        encode_frame(msgspec.structs.replace(header, without_statistics=without), pattern, delta)
        for pattern in (Pattern.seeded(layout, 500, 1), Pattern.full(layout))
        for without in (msgspec.UNSET, True)
    ]
    return Prepared(run, seeds)
