"""Position codes against coders that work bit by bit, and against the example of the block code's paper."""

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.errors import FrameError
from edge_fl.wire.positions import (
    block_width,
    decode_block,
    decode_golomb,
    encode_block,
    encode_golomb,
    golomb_width,
)


@st.composite
def positions_among(draw: st.DrawFn) -> tuple[list[int], int]:
    count = draw(st.integers(0, 200))
    return sorted(draw(st.sets(st.integers(0, count - 1)))) if count else [], count


def golomb_by_bit(positions: list[int], width: int) -> str:
    """Remainders, then quotients in unary."""
    remainders = quotients = ""
    before = -1
    for position in positions:
        gap = position - before - 1
        quotients += "1" * (gap // 2**width) + "0"
        remainders += format(gap % 2**width, f"0{width}b") if width else ""
        before = position
    return remainders + quotients


def block_by_bit(positions: list[int], width: int, count: int) -> str:
    text = ""
    for block in range(math.ceil(count / 2**width)):
        for position in positions:
            if position // 2**width == block:
                text += "1" + (format(position % 2**width, f"0{width}b") if width else "")
        text += "0"
    return text


def packed(text: str) -> bytes:
    text += "0" * (-len(text) % 8)
    return bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))


@given(positions_among(), st.integers(0, 9))
def test_golomb_is_the_code_bit_by_bit_and_comes_back(case: tuple[list[int], int], width: int) -> None:
    positions, count = case
    section = encode_golomb(np.array(positions, dtype=np.int64), width)
    assert section == packed(golomb_by_bit(positions, width))
    back = decode_golomb(memoryview(section), width=width, k=len(positions), count=count)
    assert back.tolist() == positions


@given(positions_among(), st.integers(0, 9))
def test_block_code_is_the_code_bit_by_bit_and_comes_back(case: tuple[list[int], int], width: int) -> None:
    positions, count = case
    section = encode_block(np.array(positions, dtype=np.int64), width, count)
    assert section == packed(block_by_bit(positions, width, count))
    back = decode_block(memoryview(section), width=width, k=len(positions), count=count)
    assert back.tolist() == positions


def test_block_code_writes_the_paper_s_example() -> None:
    """Eq. (18): d = 12, phi = 1/4, the indices 1, 3 and 10 counted from 1."""
    assert block_width(3, 12) == 2
    section = encode_block(np.array([0, 2, 9]), 2, 12)
    assert section == packed("1 00 1 10 0 0 1 01 0".replace(" ", ""))
    assert decode_block(memoryview(section), width=2, k=3, count=12).tolist() == [0, 2, 9]


def test_golomb_s_width_is_the_formula_of_stc_and_nearly_the_best() -> None:
    assert [golomb_width(k, 1000) for k in (0, 1, 10, 40, 1000)] == [0, 9, 6, 4, 0]
    for share in (0.001, 0.01, 0.0625, 0.25, 0.7):
        positions = np.flatnonzero(np.random.default_rng(1).random(100_000) < share)
        sizes = [len(encode_golomb(positions, width)) for width in range(16)]
        assert sizes[golomb_width(len(positions), 100_000)] <= 1.03 * min(sizes)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_bits_a_position_are_near_the_theory(share: float) -> None:
    count = 269_322
    positions = np.flatnonzero(np.random.default_rng(2).random(count) < share)
    k, p = len(positions), len(positions) / count
    width = golomb_width(k, count)
    golomb = width + 1 / (1 - (1 - p) ** 2**width)  # Sattler et al. (2019), section V-C
    assert 8 * len(encode_golomb(positions, width)) / k == pytest.approx(golomb, rel=0.02)
    entropy = -(p * math.log2(p) + (1 - p) * math.log2(1 - p)) / p
    assert golomb < 1.05 * entropy
    block = 8 * len(encode_block(positions, block_width(k, count), count)) / k
    assert block == pytest.approx(math.log2(1 / p) + 2, abs=0.5)


@given(st.binary(max_size=40), st.integers(0, 255), st.integers(0, 60), st.integers(0, 50), st.sampled_from("gb"))
def test_hostile_bytes_are_positions_or_refused(section: bytes, width: int, k: int, count: int, code: str) -> None:
    decode = decode_golomb if code == "g" else decode_block
    with contextlib.suppress(FrameError):
        positions = decode(memoryview(section), width=width, k=k, count=count)
        assert len(positions) == k
        assert sorted(set(positions.tolist())) == positions.tolist()
        assert all(0 <= position < count for position in positions)
