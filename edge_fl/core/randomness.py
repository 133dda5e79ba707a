"""Keyed, counter-based random draws: Philox4x32-10, the same bits in every language.

Every draw in edge-fl is keyed by (run seed, client, round, purpose, index), so that no draw depends on the
order in which others were made, and a retried round draws what it drew before.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["Stream", "philox4x32", "stream_key"]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ROUNDS = 10
_AHEAD = 128  # so few blocks take no longer than one, and most streams are read on


def philox4x32(key: int, blocks: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Philox4x32-10 (Salmon et al., SC 2011) of the counters ``(block, 0)``.

    Parameters
    ----------
    key
        64 bits; the low word is Philox's first key word.
    blocks
        ``[n]`` uint64 counters: the low and high words are Philox's first two counter words, the others zero.

    Returns
    -------
    ``[n, 4]`` uint32.
    """
    c0, c1 = blocks & _LOW, blocks >> _SHIFT
    c2, c3 = np.zeros_like(blocks), np.zeros_like(blocks)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(_ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def stream_key(*, seed: int, purpose: str, client: str = "", round: int = 0, index: int = 0) -> int:
    """The 64-bit Philox key of one stream: the first 8 bytes, little-endian, of a SHA-256.

    The digest is over the UTF-8 text ``edge-fl|seed|client|round|purpose|index``.
    """
    text = f"edge-fl|{seed}|{client}|{round}|{purpose}|{index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


class Stream:
    """The draws of one key, consumed in order.

    Parameters
    ----------
    key
        64 bits, from :func:`stream_key` or off the wire.
    """

    def __init__(self, key: int) -> None:
        self._key = key
        self._next = 0
        self._ahead = np.zeros((0, 4), dtype=np.uint32)

    @classmethod
    def of(cls, *, seed: int, purpose: str, client: str = "", round: int = 0, index: int = 0) -> "Stream":
        """Open the stream keyed as :func:`stream_key` says."""
        return cls(stream_key(seed=seed, purpose=purpose, client=client, round=round, index=index))

    def uint32(self, n: int) -> NDArray[np.uint32]:
        """Draw ``[n]`` uint32; a draw starts at a whole Philox block, so at most 3 words are thrown away."""
        blocks = -(-n // 4)
        if len(self._ahead) < blocks:
            self._draw(blocks - len(self._ahead))
        words, self._ahead = self._ahead[:blocks], self._ahead[blocks:]
        return words.reshape(-1)[:n]

    def _draw(self, blocks: int) -> None:
        """Draw at least ``blocks`` more."""
        blocks = max(blocks, _AHEAD)
        counters = np.arange(self._next, self._next + blocks, dtype=np.uint64)
        self._ahead = np.concatenate([self._ahead, philox4x32(self._key, counters)])
        self._next += blocks

    def normal(self, n: int) -> NDArray[np.float64]:
        """Draw ``[n]`` standard normals (Box-Muller over pairs of 32-bit uniforms in (0, 1))."""
        pairs = -(-n // 2)
        u = (self.uint32(2 * pairs).astype(np.float64) + 0.5) / 2.0**32
        radius, angle = np.sqrt(-2.0 * np.log(u[:pairs])), 2.0 * np.pi * u[pairs:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:n]

    def permutation(self, n: int) -> NDArray[np.int64]:
        """Draw a permutation of ``range(n)``: the order that sorts n words, ties by index."""
        return np.argsort(self.uint32(n), kind="stable")

    def subset(self, n: int, k: int) -> NDArray[np.int64]:
        """Draw k of ``range(n)`` without replacement, ascending: the first k of :meth:`permutation`, in order."""
        words = self.uint32(n)
        if k < 1:
            return np.zeros(0, dtype=np.int64)
        threshold = np.partition(words, k - 1)[k - 1]  # far cheaper than sorting all the words
        below = np.flatnonzero(words < threshold)
        level = np.flatnonzero(words == threshold)[: k - len(below)]
        return np.sort(np.concatenate([below, level]))
