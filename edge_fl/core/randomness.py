"""Keyed, counter-based random draws: Philox4x32-10, the same bits in every language.

Every draw in edge-fl is keyed by (run seed, client, round, purpose, index), so that no draw depends on the
order in which others were made, and a retried round draws what it drew before.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Stream", "draw_ahead", "philox4x32", "stream_key"]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = np.arange(10, dtype=np.uint64).reshape(-1, 1, 1)  # rounds
_W0, _W1 = np.uint64(0x9E3779B9) * _STEPS, np.uint64(0xBB67AE85) * _STEPS  # what is added to a key by each
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_AHEAD = 128  # so few blocks take no longer than one, and most streams are read on


def philox4x32(key: int | NDArray[np.uint64], blocks: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Philox4x32-10 (Salmon et al., SC 2011) of the counters ``(block, 0)``.

    Parameters
    ----------
    key
        64 bits, of which the low word is Philox's first key word; or several keys, ``[K]`` uint64.
    blocks
        ``[n]`` uint64 counters: the low and high words are Philox's first two counter words, the others zero.

    Returns
    -------
    ``[n, 4]`` uint32; of several keys ``[K, n, 4]``.
    """
    keys = np.asarray(key, dtype=np.uint64)
    each = keys.reshape(-1, 1)
    low, high = ((each & _LOW) + _W0) & _LOW, ((each >> _SHIFT) + _W1) & _LOW
    c0, c1 = blocks & _LOW, blocks >> _SHIFT
    c2, c3 = np.zeros_like(blocks), np.zeros_like(blocks)
    for k0, k1 in zip(low, high, strict=True):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ k0, p1 & _LOW, (p0 >> _SHIFT) ^ c3 ^ k1, p0 & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32).reshape(*keys.shape, len(blocks), 4)


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
        self._take(philox4x32(self._key, counters))

    def _take(self, words: NDArray[np.uint32]) -> None:
        self._ahead = np.concatenate([self._ahead, words])
        self._next += len(words)

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


def draw_ahead(streams: Iterable[Stream]) -> None:
    """Draw the first words of all ``streams`` that drew nothing yet, in one call: it takes hardly longer than one's.

    Each gives the words that it would have given.
    """
    fresh = [stream for stream in streams if not stream._next]
    keys = np.array([stream._key for stream in fresh], dtype=np.uint64)
    for stream, words in zip(fresh, philox4x32(keys, np.arange(_AHEAD, dtype=np.uint64)), strict=True):
        stream._take(words)
