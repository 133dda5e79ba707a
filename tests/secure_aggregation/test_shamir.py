"""Shamir's scheme over GF(2^8), against its definition and a field written out plainly."""

import itertools
import secrets

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.secure_aggregation.shamir import combine, split


def times(a: int, b: int) -> int:
    """In AES's field, bit by bit (FIPS 197, section 4.2)."""
    product = 0
    for bit in range(8):
        if b >> bit & 1:
            product ^= a << bit
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= 0x11B << (bit - 8)
    return product


def test_the_field_is_that_of_aes() -> None:
    assert times(0x57, 0x83) == 0xC1  # FIPS 197's example
    # With two shares a secret lies on a line: s1 = s + c, s2 = s + 2 c, so c = s1 + s2 over 3, and s is known.
    for secret in range(256):
        first, second = (share[0] for share in split(bytes([secret]), 2, 2))
        slope = next(c for c in range(256) if times(c, 3) == first ^ second)
        assert first ^ slope == secret
        assert second ^ times(slope, 2) == secret


@given(st.binary(min_size=1, max_size=40), st.integers(1, 12), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, count: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, count))
    shares = split(secret, count, threshold)
    chosen = data.draw(st.permutations(range(count)))[:threshold]
    assert combine({number: shares[number] for number in chosen}) == secret


def test_a_cohort_of_a_hundred() -> None:
    secret = secrets.token_bytes(32)
    shares = split(secret, 100, 67)
    assert combine({number: shares[number] for number in range(33, 100)}) == secret
    assert combine({number: shares[number] for number in range(34, 100)}) != secret


def test_fewer_shares_say_nothing() -> None:
    """Of two of three shares each pair of values goes with each secret: counts over many splittings are even."""
    counts = np.zeros((2, 4), dtype=int)
    for place, secret in enumerate((0x00, 0xFF)):
        for _ in range(4000):
            counts[place, split(bytes([secret]), 3, 2)[1][0] >> 6] += 1
    assert (abs(counts - 1000) < 6 * np.sqrt(1000)).all()


@pytest.mark.parametrize(("count", "threshold"), list(itertools.product((0, 1, 256), (0, 2, 257))))
def test_what_cannot_be(count: int, threshold: int) -> None:
    with pytest.raises(ValueError, match="cannot give a secret"):
        split(b"secret", count, threshold)


@pytest.mark.parametrize("shares", [{}, {-1: b"a"}, {255: b"a"}, {0: b"a", 1: b"bc"}])
def test_shares_of_no_secret(shares: dict[int, bytes]) -> None:
    with pytest.raises(ValueError, match="share"):
        combine(shares)
