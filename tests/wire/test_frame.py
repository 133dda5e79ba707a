import math
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.core.selection import Selection
from edge_fl.wire.frame import Header, decode_frame, encode_frame, encode_kept
from edge_fl.wire.sparse import SPARSE, encode_sent
from edge_fl.wire.values import FLOAT32, flatten, values_size

MODES: tuple[Mode, ...] = get_args(Mode)
HEADER = Header(
    kind="update",
    run="r1",
    round=3,
    version=2,
    layout="",
    method="fedbiad",
    client="phone-3",
    samples=60,
    loss=0.5,
)
PATTERNS: dict[str, Callable[[Layout], Pattern]] = {
    "prefix": lambda layout: Pattern.prefix(layout, 500),
    "seed": lambda layout: Pattern.seeded(layout, 500, key=2**63 + 5),
    "bitmask": lambda layout: Pattern(layout, np.arange(layout.units) % 2 == 0),
}
every_kind = pytest.mark.parametrize(("encoding", "mode"), [(e, m) for e in PATTERNS for m in MODES])


def numbered(layout: Layout) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return {t.name: rng.normal(size=t.shape).astype(np.float32) for t in layout.tensors}


def frame_of(layout: Layout, encoding: str, mode: Mode) -> bytes:
    header = msgspec.structs.replace(HEADER, mode=mode)
    return encode_frame(header, PATTERNS[encoding](layout), numbered(layout))


def sealed(frame: bytearray) -> bytes:
    """The frame with the checksum that belongs to its bytes, so that later checks are reached."""
    frame[24:28] = struct.pack("<I", zlib.crc32(frame[28:], zlib.crc32(frame[:24])))
    return bytes(frame)


def refusal(data: bytes, layout: Layout) -> str:
    with pytest.raises(FrameError) as caught:
        decode_frame(data, layout)
    return caught.value.code


@pytest.mark.parametrize("mode", MODES)
def test_a_frame_is_checked_before_its_pattern_is_drawn(
    small: Layout, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = frame_of(small, "seed", mode)
    with monkeypatch.context() as undrawn:
        undrawn.delattr(Stream, "subset")
        frame = decode_frame(data, small)
        short = bytearray(data[:-8])
        short[16:24] = struct.pack("<Q", struct.unpack("<Q", data[16:24])[0] - 8)
        assert refusal(sealed(short), small) == "values"
    np.testing.assert_array_equal(frame.pattern.mask, PATTERNS["seed"](small).mask)


@every_kind
def test_a_frame_gives_back_what_went_in(small: Layout, encoding: str, mode: Mode) -> None:
    full, pattern = numbered(small), PATTERNS[encoding](small)
    frame = decode_frame(frame_of(small, encoding, mode), small)
    assert frame.header == msgspec.structs.replace(HEADER, mode=mode, layout=small.digest, mask=encoding)
    assert frame.pattern == pattern
    assert frame.pattern.origin == pattern.origin
    for name, kept in frame.selection.gather(full).items():
        assert frame.values[name].dtype == np.float32
        assert frame.values[name].shape == kept.shape
        assert frame.values[name].tobytes() == kept.tobytes()


@every_kind
@pytest.mark.parametrize("sparse", [False, True])
def test_an_update_without_statistics_is_smaller_by_them_and_changes_none(
    small: Layout, encoding: str, mode: Mode, *, sparse: bool
) -> None:
    full, pattern = numbered(small), PATTERNS[encoding](small)
    selection = Selection.of(pattern, mode)
    vector = flatten(selection, full)
    section = encode_sent(vector, vector > 0) if sparse else None
    header = msgspec.structs.replace(HEADER, mode=mode, values=SPARSE if sparse else FLOAT32)
    whole = decode_frame(encode_frame(header, pattern, full, section), small)
    without = msgspec.structs.replace(header, without_statistics=True)
    frame = decode_frame(encode_frame(without, pattern, full, section), small)

    assert not frame.values["conv.mean"].any()
    assert frame.values["conv.mean"].shape == selection.shape(small.tensor("conv.mean"))
    for tensor in small.parameters:
        assert np.array_equal(frame.values[tensor.name], whole.values[tensor.name])
    assert values_size(selection, section) - values_size(selection, section, statistics=False) == 4 * math.prod(
        selection.shape(small.tensor("conv.mean"))
    )


@pytest.mark.parametrize("kind", ["model", "change", "statistics"])
def test_an_update_alone_leaves_statistics_out(small: Layout, kind: Any) -> None:
    header = msgspec.structs.replace(HEADER, kind=kind, without_statistics=True)
    assert refusal(encode_frame(header, Pattern.full(small), numbered(small)), small) == "values"


@given(data=st.data())
@pytest.mark.parametrize("mode", MODES)
def test_any_bitmask_round_trips_even_an_empty_one(small: Layout, mode: Mode, data: st.DataObject) -> None:
    bits = data.draw(st.lists(st.booleans(), min_size=small.units, max_size=small.units))
    pattern, full = Pattern(small, np.array(bits)), numbered(small)
    header = msgspec.structs.replace(HEADER, mode=mode)
    frame = decode_frame(encode_frame(header, pattern, full), small)
    back = {name: np.full_like(array, np.inf) for name, array in full.items()}
    frame.selection.scatter(frame.values, back)
    held = sum(int(np.isfinite(array).sum()) for array in back.values())
    assert held == sum(array.size for array in frame.values.values())
    assert all(np.isin(back[name], [*full[name].ravel(), np.inf]).all() for name in full)
    assert frame.pattern == pattern


def test_a_layout_without_blocks_or_tensors_has_a_frame() -> None:
    layout = Layout((), ())
    assert decode_frame(encode_frame(HEADER, Pattern(layout, np.zeros(0, dtype=bool)), {}), layout).values == {}


def test_what_is_shared_travels_in_the_header_and_costs_nothing_where_nothing_is(small: Layout) -> None:
    full = Pattern.full(small)
    without = encode_frame(HEADER, full, numbered(small))
    shared = encode_frame(msgspec.structs.replace(HEADER, shared=bytes(range(100))), full, numbered(small))
    assert decode_frame(without, small).shared == b""
    assert b"shared" not in without
    assert decode_frame(shared, small).shared == bytes(range(100))
    assert 100 <= len(shared) - len(without) <= 116
    assert refusal(altered(shared, shared="text"), small) == "header"


@every_kind
def test_a_frame_cut_anywhere_is_refused(small: Layout, encoding: str, mode: Mode) -> None:
    frame = frame_of(small, encoding, mode)
    assert {refusal(frame[:n], small) for n in range(len(frame))} == {"truncated"}
    assert refusal(frame + b"\0", small) == "truncated"


@every_kind
def test_a_frame_with_any_bit_flipped_is_refused(small: Layout, encoding: str, mode: Mode) -> None:
    frame = frame_of(small, encoding, mode)
    for bit in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        assert refusal(bytes(flipped), small) in {"magic", "version", "truncated", "checksum"}


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(small: Layout, data: bytes) -> None:
    with pytest.raises(FrameError):
        decode_frame(data, small)


@given(data=st.data())
@every_kind
def test_a_sealed_but_altered_frame_is_refused_or_read(
    small: Layout, encoding: str, mode: Mode, data: st.DataObject
) -> None:
    """Whoever can compute a CRC gets no further than a refusal: never another exception, never a NaN."""
    frame = bytearray(frame_of(small, encoding, mode))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at : at + 8] = data.draw(st.binary(min_size=1, max_size=8))
    try:
        decoded = decode_frame(sealed(frame), small)
    except FrameError:
        return
    assert all(np.isfinite(values).all() for values in decoded.values.values())


HOSTILE_SIZES = [
    (2**32 - 1, 0, 0),
    (0, 2**32 - 1, 0),
    (0, 0, 2**64 - 1),
    (2**32 - 1, 2**32 - 1, 2**64 - 1),
    (64, 8, 2**40),
]


@pytest.mark.parametrize("sizes", HOSTILE_SIZES)
def test_announced_sizes_allocate_nothing(small: Layout, sizes: tuple[int, int, int]) -> None:
    frame = bytearray(frame_of(small, "bitmask", "units"))
    struct.pack_into("<IIQ", frame, 8, *sizes)
    data = sealed(frame)
    tracemalloc.start()
    assert refusal(data, small) == "truncated"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 1024


def with_header(frame: bytes, head: bytes) -> bytes:
    """The frame under another header."""
    size, mask_size = struct.unpack_from("<II", frame, 8)
    rest = frame[-(-(32 + size) // 8) * 8 :]
    padded = head + bytes(-(32 + len(head)) % 8)
    prelude = frame[:8] + struct.pack("<II", len(head), mask_size) + frame[16:32]
    return sealed(bytearray(prelude + padded + rest))


def altered(frame: bytes, **changes: object) -> bytes:
    (size,) = struct.unpack_from("<I", frame, 8)
    head = msgspec.msgpack.decode(frame[32 : 32 + size], type=dict[str, object])
    return with_header(frame, msgspec.msgpack.encode(head | changes))


def test_a_header_announcing_gigabytes_allocates_nothing(small: Layout) -> None:
    frame = frame_of(small, "prefix", "units")
    for head in (
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x81\xdb\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
    ):
        data = with_header(frame, head)
        tracemalloc.start()
        assert refusal(data, small) == "header"
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 16 * 1024


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("header", {"kind": "gradient"}),
        ("header", {"round": -1}),
        ("header", {"version": -1}),
        ("header", {"samples": -1}),
        ("header", {"samples": 1.5}),
        ("header", {"mask": "huffman"}),
        ("values", {"values": "float64"}),
        ("header", {"mode": "columns"}),
        ("header", {"surplus": 1}),
        ("header", {"client": None}),
        ("not-finite", {"loss": float("nan")}),
        ("not-finite", {"loss": float("inf")}),
        ("layout", {"layout": "0" * 16}),
        ("mask", {"mask": "seed"}),
        ("values", {"mode": "rows"}),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(small: Layout, code: str, changes: dict[str, object]) -> None:
    frame = frame_of(small, "bitmask", "units")
    assert decode_frame(altered(frame), small).header.round == 3
    assert refusal(altered(frame, **changes), small) == code


def test_a_header_that_is_no_map_is_refused(small: Layout) -> None:
    assert refusal(with_header(frame_of(small, "prefix", "units"), b"\xc1"), small) == "header"
    assert refusal(with_header(frame_of(small, "prefix", "units"), b"\x81\xa1\xff\x01"), small) == "header"


def test_another_version_is_refused(small: Layout) -> None:
    frame = bytearray(frame_of(small, "prefix", "units"))
    frame[4] = 2
    assert refusal(sealed(frame), small) == "version"


def test_kept_entries_of_another_shape_are_no_frame(mlp: Layout) -> None:
    kept = Selection.of(Pattern.prefix(mlp, 500), "units").gather(numbered(mlp))
    with pytest.raises(ValueError, match="has the shape"):
        encode_kept(HEADER, Pattern.full(mlp), kept)


@pytest.mark.parametrize("name", ["conv.weight", "conv.mean", "scale"])
def test_a_nan_in_any_tensor_is_refused(small: Layout, name: str) -> None:
    tensors = numbered(small)
    tensors[name].flat[-1] = np.nan
    assert refusal(encode_frame(HEADER, Pattern.full(small), tensors), small) == "not-finite"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_refused(mlp: Layout, bad: float) -> None:
    tensors = {t.name: np.zeros(t.shape, dtype=np.float32) for t in mlp.tensors}
    for name, entry in [("fc1.weight", 0), ("fc1.weight", -1), ("fc3.bias", -1)]:
        tensors[name].flat[entry] = bad
        frame = encode_frame(HEADER, Pattern.full(mlp), tensors)
        assert refusal(frame, mlp) == "not-finite"
        tensors[name].flat[entry] = 0.0


def sections(frame: bytes) -> tuple[int, int, int]:
    """Header, mask and value bytes as the prelude gives them."""
    header, mask, values = struct.unpack_from("<IIQ", frame, 8)
    return header, mask, values


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dropout", [0, 200, 400, 500, 600, 999])
def test_dropped_rows_are_absent_to_the_byte(mlp: Layout, mode: Mode, dropout: int) -> None:
    """Every entry of a dropped unit holds a number that appears nowhere in the frame."""
    pattern = Pattern.highest(mlp, dropout, np.arange(512.0), Stream.of(seed=0, purpose="ties"))
    one, two = pattern.kept["fc1"], pattern.kept["fc2"]
    tensors = {t.name: np.full(t.shape, 12345.0, dtype=np.float32) for t in mlp.tensors}
    tensors["fc1.weight"][one] = tensors["fc1.bias"][one] = 1.0
    if mode == "rows":
        tensors["fc2.weight"][two] = tensors["fc3.weight"][...] = 1.0
    else:
        tensors["fc2.weight"][np.ix_(two, one)] = tensors["fc3.weight"][:, two] = 1.0
    tensors["fc2.bias"][two] = tensors["fc3.bias"][...] = 1.0
    frame = encode_frame(msgspec.structs.replace(HEADER, mode=mode), pattern, tensors)

    inputs, outputs = (256, 256) if mode == "rows" else (len(one), len(two))
    numbers = len(one) * (784 + 1) + len(two) * (inputs + 1) + 10 * (outputs + 1)
    header, mask, values = sections(frame)
    assert (mask, values) == (64, 4 * numbers)
    assert len(frame) == -(-(32 + header) // 8) * 8 + 64 + 4 * numbers
    assert frame[-values:] == struct.pack("<f", 1.0) * numbers


def test_half_the_network_is_half_the_bytes(mlp: Layout) -> None:
    def size(pattern: Pattern, mode: Mode) -> int:
        return len(encode_frame(msgspec.structs.replace(HEADER, mode=mode), pattern, tensors))

    tensors = numbered(mlp)
    half = Pattern(mlp, Pattern.seeded(mlp, 500, key=1).mask)
    dense = size(Pattern.full(mlp), "rows")
    assert size(half, "rows") <= 0.51 * dense
    assert size(half, "units") < size(half, "rows")
    assert size(Pattern.seeded(mlp, 500, key=1), "rows") < size(half, "rows")
