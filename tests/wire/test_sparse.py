"""The section of updates that leave entries out: what went in, and strangers' bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.errors import FrameError
from edge_fl.wire.sparse import decode_sent, encode_sent


@given(st.lists(st.booleans(), max_size=300))
def test_what_is_sent_comes_back_and_nothing_else(bits: list[bool]) -> None:
    sent = np.array(bits, dtype=np.bool_)
    values = np.arange(len(sent), dtype=np.float32)  # the first entry is 0, sent or not
    vector, told = decode_sent(memoryview(encode_sent(values, sent)), len(sent))
    assert np.array_equal(told, sent)
    assert vector.dtype == np.float32
    assert np.array_equal(vector, np.where(sent, values, 0))


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_positions_take_hardly_more_than_their_entropy(share: float) -> None:
    n = 100_000
    sent = np.random.default_rng(0).random(n) < share
    k = int(sent.sum())
    positions = len(encode_sent(np.zeros(n, np.float32), sent)) - 5 - 4 * k
    entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share)) * n / 8
    assert positions < 1.15 * entropy + 8


@pytest.mark.parametrize("left_out", [0, 1, 100, 5_000, 9_999, 10_000])
def test_a_section_is_hardly_larger_than_a_dense_one(left_out: int) -> None:
    """A coordinator takes no frame much larger than a model."""
    sent = np.arange(10_000) >= left_out
    assert len(encode_sent(np.ones(10_000, np.float32), sent)) <= 4 * 10_000 + 5


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (b"\0", "fewer than their header"),
        (b"\0\x05\0\0\0", "at most 4"),
        (b"\0\x02\0\0\0" + bytes(7), "end before the 2 numbers"),
        (b"\0\x01\0\0\0" + bytes(4), "cannot hold 1 positions"),
        (b"\0\x03\0\0\0" + bytes(12) + b"\xf8", "beyond the 4"),
        (b"\0\x04\0\0\0" + bytes(17), "0 bits belong"),
        (b"\x20\x01\0\0\0" + bytes(9), "make no sense"),
    ],
)
def test_another_section_is_refused(section: bytes, says: str) -> None:
    with pytest.raises(FrameError, match=says) as caught:
        decode_sent(memoryview(section), 4)
    assert caught.value.code == "values"
