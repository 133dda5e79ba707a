"""Draws that nobody can foretell who does not have the key: the noise and the choices of differential privacy."""

import hashlib
import os

import numpy as np
from numpy.typing import NDArray

__all__ = ["KEY_BYTES", "SecretStream"]

KEY_BYTES = 32
_BLOCK = 1 << 18  # normals made at once: 8 MB of words
_SUMMED = 4


class SecretStream:
    """The draws of one key, consumed in order: SHAKE-256 of the key and a counter.

    Parameters
    ----------
    key
        Any bytes; :meth:`fresh` has the operating system draw them.
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._calls = key, 0

    @classmethod
    def fresh(cls) -> "SecretStream":
        """A stream that nobody can repeat."""
        return cls(os.urandom(KEY_BYTES))

    def uniform(self, n: int) -> NDArray[np.float64]:
        """Draw ``[n]`` numbers strictly between 0 and 1, of 53 bits each."""
        text = self._calls.to_bytes(8, "little") + self._key
        self._calls += 1
        words = np.frombuffer(hashlib.shake_256(text).digest(8 * n), dtype="<u8")
        return ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53

    def normal(self, n: int) -> NDArray[np.float64]:
        """Draw ``[n]`` standard normals.

        Each is half the sum of four Box-Muller normals. So the low bits of a float64 do not tell which words made it
        (Holohan and Braghin 2021, *Secure Random Sampling in Differential Privacy*, section 3.2).
        """
        drawn = np.empty(n)
        for start in range(0, n, _BLOCK):
            part = drawn[start : start + _BLOCK]
            pairs = -(-len(part) // 2)
            u = self.uniform(2 * pairs * _SUMMED).reshape(2, _SUMMED, pairs)
            radius, angle = np.sqrt(-2.0 * np.log(u[0])), 2.0 * np.pi * u[1]
            both = np.concatenate([(radius * np.cos(angle)).sum(axis=0), (radius * np.sin(angle)).sum(axis=0)])
            part[:] = both[: len(part)] / np.sqrt(_SUMMED)
        return drawn
