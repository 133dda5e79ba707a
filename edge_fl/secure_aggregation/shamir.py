"""Shamir's secret sharing over GF(2^8), byte by byte: any ``threshold`` shares give the secret, fewer say nothing.

A. Shamir, *How to Share a Secret*, 1979. The field is that of AES, with the polynomial x^8 + x^4 + x^3 + x + 1.
"""

import secrets
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST_SHARES", "combine", "split"]

MOST_SHARES = 255
"""As many as there are points other than 0."""

_POLYNOMIAL = 0x11B


def _tables() -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    logs, powers = np.zeros(256, dtype=np.int64), np.zeros(510, dtype=np.uint8)
    value = 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logs[value] = exponent
        value ^= value << 1  # times the generator 3
        if value & 0x100:
            value ^= _POLYNOMIAL
    return logs, powers


_LOGS, _POWERS = _tables()


def split(secret: bytes, shares: int, threshold: int) -> list[bytes]:
    """Shares of ``secret``, each as long as it is: share i belongs to the point i + 1.

    Raises ValueError unless ``1 <= threshold <= shares <= 255``.
    """
    if not 1 <= threshold <= shares <= MOST_SHARES:
        raise ValueError(f"{threshold} of {shares} shares cannot give a secret")
    length = len(secret)
    random = np.frombuffer(secrets.token_bytes((threshold - 1) * length), dtype=np.uint8)
    coefficients = random.reshape(threshold - 1, length)  # of x^(threshold - 1) down to x
    points = np.arange(1, shares + 1, dtype=np.uint8)[:, np.newaxis]
    values = np.zeros((shares, length), dtype=np.uint8)
    for coefficient in [*coefficients, np.frombuffer(secret, dtype=np.uint8)]:
        values = _times(values, points) ^ coefficient
    return [value.tobytes() for value in values]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret of as many ``shares``, by their number, as its threshold asks for; others give another secret.

    Raises ValueError when they differ in length, or are of no point.
    """
    points = np.array(sorted(shares), dtype=np.int64) + 1
    if not len(points) or points.min() < 1 or points.max() > MOST_SHARES:
        raise ValueError("these are shares of no secret")
    if len({len(share) for share in shares.values()}) != 1:
        raise ValueError("the shares differ in length")
    values = np.stack([np.frombuffer(shares[number], dtype=np.uint8) for number in sorted(shares)])
    secret = np.zeros(values.shape[1], dtype=np.uint8)
    for own, value in zip(points, values, strict=True):
        others = points[points != own]
        # Lagrange's factor at 0: the product of x / (x - own), where minus is exclusive or.
        exponent = int((_LOGS[others] - _LOGS[others ^ own]).sum()) % 255
        secret ^= _times(value, np.full_like(value, _POWERS[exponent]))
    return secret.tobytes()


def _times(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The product of each two elements of the field."""
    product = _POWERS[_LOGS[left] + _LOGS[right]]
    return np.where((left == 0) | (right == 0), np.uint8(0), product)
