"""Partial sums as bytes: what is read is what was written, and whatever breaks a rule is refused with its code."""

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout
from edge_fl.wire.sum_frame import PartialSum, SumHeader, TensorSum, decode_sum, encode_sum

VECTORS = Path(__file__).parents[1] / "vectors"
LAYOUT = msgspec.convert(msgspec.json.decode((VECTORS / "layout.json").read_bytes())["layout"], Layout)
ROWS = (VECTORS / "sums" / "rows.bin").read_bytes()
UNITS = (VECTORS / "sums" / "units.bin").read_bytes()


def sealed(frame: bytes) -> bytes:
    return frame[:24] + struct.pack("<I", zlib.crc32(frame[28:], zlib.crc32(frame[:24]))) + frame[28:]


def changed(frame: bytes, **fields: object) -> bytes:
    """The frame with other header fields."""
    found = decode_sum(frame, LAYOUT)
    head = {**msgspec.to_builtins(found.header), **fields}
    return with_head(frame, msgspec.msgpack.encode(head))


def with_head(frame: bytes, head: bytes) -> bytes:
    size, mask, values = struct.unpack_from("<IIQ", frame, 8)
    rest = frame[-(-(32 + size) // 8) * 8 :]
    prelude = frame[:8] + struct.pack("<IIQ", len(head), mask, values) + bytes(8)
    return sealed(prelude + head + bytes(-len(head) % 8) + rest)


def with_tensor(change: Callable[[TensorSum], TensorSum], name: str = "conv.weight", frame: bytes = ROWS) -> bytes:
    """The frame with another sum of a tensor."""
    found = decode_sum(frame, LAYOUT)
    return encode_sum(found.header, LAYOUT, {**found.tensors, name: change(found.tensors[name])})


@pytest.mark.parametrize("frame", [ROWS, UNITS])
def test_what_is_read_is_what_was_written(frame: bytes) -> None:
    found = decode_sum(frame, LAYOUT)
    assert encode_sum(found.header, LAYOUT, found.tensors) == frame


@pytest.mark.parametrize("frame", [ROWS, UNITS])
def test_no_byte_can_be_missing_and_none_is_another(frame: bytes) -> None:
    for end in range(0, len(frame), 7):
        with pytest.raises(FrameError) as caught:
            decode_sum(frame[:end], LAYOUT)
        assert caught.value.code == "truncated"
    for place in range(8, len(frame), 5):
        with pytest.raises(FrameError):
            decode_sum(frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :], LAYOUT)


def _bigger(held: TensorSum) -> TensorSum:
    return replace(held, total=np.full_like(held.total, 1 << 62))


def _smallest(held: TensorSum) -> TensorSum:
    return replace(held, total=np.full_like(held.total, -(1 << 63)))


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"EFLF" + ROWS[4:], "magic"),
        (sealed(ROWS[:4] + b"\2" + ROWS[5:]), "version"),
        (ROWS[:-1] + bytes([ROWS[-1] ^ 1]), "checksum"),
        (with_head(ROWS, b"\xc1"), "header"),
        (changed(ROWS, more=1), "header"),
        (changed(ROWS, clients=0), "header"),
        (changed(ROWS, weight=-1), "header"),
        (changed(ROWS, exponents=[0, 0, 0, 0]), "header"),
        (changed(ROWS, exponents=[0, 0, 0, 0, 257]), "header"),
        (changed(ROWS, layout="0" * 16), "layout"),
        (changed(ROWS, entries=["conv.weight"]), "values"),
        (changed(UNITS, entries=["head.weight", "lstm.weight", "conv.mean"]), "header"),
        (changed(ROWS, entries=["other"]), "header"),
        (changed(ROWS, weight=12), "values"),
        (with_tensor(_bigger), "values"),
        (with_tensor(_smallest), "values"),
        (with_tensor(lambda held: replace(held, holders=-held.holders)), "values"),
        (with_tensor(lambda held: replace(held, holders=0 * held.holders)), "mask"),
        (with_tensor(lambda held: replace(held, holders=held.holders * 0), "conv.mean", UNITS), "mask"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_its_code(frame: bytes, code: str) -> None:
    with pytest.raises(FrameError) as caught:
        decode_sum(frame, LAYOUT)
    assert caught.value.code == code


def test_a_sum_where_nobody_holds_an_entry_is_refused() -> None:
    def change(held: TensorSum) -> TensorSum:
        holders = held.holders.copy()
        row, column = np.argwhere((holders > 0) & (held.total != 0))[0]
        holders[row, column] = 0
        return replace(held, holders=holders)

    with pytest.raises(FrameError, match="is not 0 where nobody holds an entry"):
        decode_sum(with_tensor(change, "head.weight", UNITS), LAYOUT)


def test_bits_beyond_the_rows_are_refused() -> None:
    size = struct.unpack_from("<I", ROWS, 8)[0]
    mask = -(-(32 + size) // 8) * 8
    with pytest.raises(FrameError, match=r"bits beyond the rows of 'conv\.weight'"):
        decode_sum(sealed(ROWS[:mask] + bytes([ROWS[mask] | 0x80]) + ROWS[mask + 1 :]), LAYOUT)


def test_a_sum_of_nothing_that_changes() -> None:
    """Rows without a holder are not there, and a tensor without a row takes no byte."""
    none = {
        tensor.name: TensorSum(
            np.zeros(0, np.int64), np.zeros((0, 1), np.int64), np.zeros((0, tensor.matrix[1]), np.int64)
        )
        for tensor in LAYOUT.tensors
    }
    header = SumHeader("run-1", 1, "", 1, 1, (0,) * len(LAYOUT.tensors))
    found: PartialSum = decode_sum(encode_sum(header, LAYOUT, none), LAYOUT)
    assert all(held.total.size == held.rows.size == 0 for held in found.tensors.values())
