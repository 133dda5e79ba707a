import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Block, Layout
from edge_fl.core.pattern import Pattern
from edge_fl.wire.masks import MaskEncoding, decode_mask, encode_mask

SIZES = st.lists(st.integers(1, 40), max_size=4)


def blocks_of(sizes: list[int]) -> Layout:
    return Layout(tuple(Block(f"b{i}", size) for i, size in enumerate(sizes)), ())


@given(SIZES, st.integers(1, 1000))
def test_a_prefix_is_two_bytes(sizes: list[int], width: int) -> None:
    pattern = Pattern.prefix(blocks_of(sizes), width)
    encoding, section = encode_mask(pattern)
    assert (encoding, section) == ("prefix", width.to_bytes(2, "little"))
    assert decode_mask(encoding, section, pattern.layout) == pattern


@given(SIZES, st.integers(0, 999), st.integers(0, 2**64 - 1))
def test_a_seed_is_ten_bytes(sizes: list[int], dropout: int, key: int) -> None:
    pattern = Pattern.seeded(blocks_of(sizes), dropout, key)
    encoding, section = encode_mask(pattern)
    assert (encoding, section) == ("seed", key.to_bytes(8, "little") + dropout.to_bytes(2, "little"))
    assert decode_mask(encoding, section, pattern.layout) == pattern


@given(st.data(), SIZES)
def test_a_bitmask_is_one_bit_a_unit_lowest_first(data: st.DataObject, sizes: list[int]) -> None:
    bits = data.draw(st.lists(st.booleans(), min_size=sum(sizes), max_size=sum(sizes)))
    pattern = Pattern(blocks_of(sizes), np.array(bits, dtype=np.bool_))
    encoding, section = encode_mask(pattern)
    number = sum(bit << i for i, bit in enumerate(bits))
    assert (encoding, section) == ("bitmask", number.to_bytes(-(-sum(sizes) // 8), "little"))
    assert decode_mask(encoding, section, pattern.layout) == pattern


@pytest.mark.parametrize(
    ("encoding", "section"),
    [
        ("prefix", struct.pack("<H", 0)),
        ("prefix", struct.pack("<H", 1001)),
        ("prefix", b"\1"),
        ("seed", struct.pack("<QH", 1, 1000)),
        ("seed", struct.pack("<Q", 1)),
        ("bitmask", b"\xff\x07"),
        ("bitmask", b"\xff\x80"),
        ("bitmask", b"\xff"),
        ("bitmask", b"\xff\x03\x00"),
    ],
)
def test_a_mask_that_tells_no_pattern_is_refused(encoding: MaskEncoding, section: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        decode_mask(encoding, section, blocks_of([7, 3]))
    assert caught.value.code == "mask"
