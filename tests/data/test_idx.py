import gzip
import struct
import tracemalloc
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.errors import DataError
from edge_fl.data.idx import decode_idx

SHAPE = (3, 2, 2)


def idx(shape: tuple[int, ...] = SHAPE, *, magic: bytes = b"\0\0\x08", body: bytes | None = None) -> bytes:
    count = int(np.prod(shape))
    body = bytes(i % 256 for i in range(count)) if body is None else body
    return magic + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


@pytest.mark.parametrize("wrap", [bytes, gzip.compress], ids=["plain", "gzipped"])
@pytest.mark.parametrize("shape", [SHAPE, (5,), (0, 4), (300, 1)])
def test_an_array_is_read(wrap: type[bytes], shape: tuple[int, ...]) -> None:
    array = decode_idx(wrap(idx(shape)), shape, where="f")
    assert array.dtype == np.uint8
    assert array.shape == shape
    assert array.reshape(-1).tolist() == [i % 256 for i in range(array.size)]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "truncated"),
        (idx(magic=b"\0\0\x0d"), "no idx file of unsigned bytes"),
        (idx(magic=b"abc"), "no idx file of unsigned bytes"),
        (idx((3, 4)), "another shape"),
        (idx((2, 2, 2)), "another shape"),
        (idx((2**32 - 1,) * 3, body=b""), "another shape"),
        (idx(body=bytes(11)), "truncated"),
        (idx(body=bytes(13)), "too long"),
        (gzip.compress(idx(body=bytes(13))), "too long"),
        (gzip.compress(idx())[:-9], "truncated"),
        (gzip.compress(idx())[:-1], "truncated"),
        (gzip.compress(idx())[:-4] + bytes(4), "damaged"),
        (gzip.compress(idx())[:10] + b"\x07" + bytes(20), "damaged"),
    ],
    ids=range(13),
)
def test_a_damaged_file_is_refused_in_one_sentence(content: bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=rf"^'train\.gz' .*{sentence}[^\n]*\.$"):
        decode_idx(content, SHAPE, where="train.gz")


def test_a_file_cut_anywhere_is_refused() -> None:
    for content in (idx(), gzip.compress(idx())):
        for n in range(len(content)):
            with pytest.raises(DataError):
                decode_idx(content[:n], SHAPE, where="f")


@given(
    st.binary(max_size=64), st.sampled_from([b"", b"\x1f\x8b", b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"\0\0\x08\x03"])
)
def test_arbitrary_bytes_are_refused(tail: bytes, head: bytes) -> None:
    with pytest.raises(DataError):
        decode_idx(head + tail, (1000, 28, 28), where="f")


@given(st.data())
def test_an_altered_file_is_refused_or_read(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from([idx(), gzip.compress(idx())])))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + 4] = data.draw(st.binary(max_size=6))
    with suppress(DataError):
        assert decode_idx(bytes(content), SHAPE, where="f").shape == SHAPE


def peak_of_refusing(content: bytes, shape: tuple[int, ...]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            decode_idx(content, shape, where="f")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_follows_what_is_there_and_not_what_is_announced() -> None:
    huge = (2**32 - 1, 2**16)
    for content in (idx(huge, body=b"abc"), gzip.compress(idx(huge, body=b"abc"))):
        assert peak_of_refusing(content, huge) < 256 * 1024
        assert peak_of_refusing(content, SHAPE) < 256 * 1024


def test_a_decompression_bomb_is_cut_off() -> None:
    bomb = zlib.compressobj(wbits=31)
    content = bomb.compress(idx()) + b"".join(bomb.compress(bytes(2**20)) for _ in range(64)) + bomb.flush()
    assert peak_of_refusing(content, SHAPE) < 512 * 1024
