"""Fractional quantisation (Ozfatura et al., *Time-Correlated Sparsification*, 2021, eq. 20 to 22).

Magnitudes from the largest down to the smallest are cut into P intervals whose ends fall by a constant factor
sigma (eq. 20 and 21); each entry becomes its sign times the mean magnitude of its interval (eq. 22). ``bits`` an
entry are one for the sign and log2 P for the interval.

What is read into the paper where it can be read in several ways:

- Eq. (20) prints closed intervals from the higher end to the lower, which share their ends. An end belongs to
  the interval above it here: ``sigma^p u_max <= |u| < sigma^(p-1) u_max``.
- A magnitude of 0 would make sigma 0, and every other entry one interval. So u_min is the smallest magnitude
  above 0, and where there are zeros they have the last interval to themselves, its mean 0, and the others share
  P - 1.
- The paper quantises layer by layer; a compressor sees one vector and takes it for one layer.
- No error is fed back: Algorithm 3 does so for what the masks leave out, not for what quantisation adds.
"""

import struct
from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.compressors._section import check_finite, check_scale
from edge_fl.compressors.base import Compressed, Compressor
from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.randomness import Stream
from edge_fl.wire.bits import pack_numbers, read_floats, read_header, unpack_numbers
from edge_fl.wire.context import Context, Vector

__all__ = ["COMPRESSOR", "Fractional", "FractionalParameters", "decode_fractional", "encode_fractional"]

_HEADER = struct.Struct("<B")  # bits an entry


class FractionalParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What fractional quantisation takes.

    Parameters
    ----------
    bits
        Bits an entry with its sign, 2 to 8; 5 are the paper's TCS-L4-Q5.
    """

    bits: int = 5

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise ConfigError(f"fractional has 2 to 8 bits an entry, not {self.bits}.")


class Fractional(Compressor):
    """Signs and intervals of magnitude; nothing is remembered."""

    name = "fractional"
    Parameters = FractionalParameters
    parameters: FractionalParameters

    def compress(
        self, values: Vector, memory: Mapping[str, Vector], context: Context, stream: Stream
    ) -> Compressed:
        """Send each entry's sign and interval, and the intervals' means; RunError on what is not finite."""
        del memory, context, stream
        check_finite(values)
        return Compressed(encode_fractional(values, self.parameters.bits), {})

    @staticmethod
    def decompress(section: memoryview, context: Context) -> Vector:
        """The ``[n]`` float32, each plus or minus a mean; FrameError (``values``) on a bad section."""
        return decode_fractional(section, context.count)


def encode_fractional(values: Vector, bits: int) -> bytes:
    """``[n]`` finite float32 at ``bits`` each, and the intervals' means."""
    intervals = 2 ** (bits - 1)
    magnitudes = np.abs(values).astype(np.float64)
    index = _intervals(magnitudes, intervals)
    sizes = np.bincount(index, minlength=intervals)
    means = np.bincount(index, weights=magnitudes, minlength=intervals) / np.maximum(sizes, 1)
    codes = index + intervals * (values < 0)
    return _HEADER.pack(bits) + means.astype("<f4").tobytes() + pack_numbers(codes, bits)


def decode_fractional(section: memoryview, count: int) -> Vector:
    """The ``[count]`` float32 of :func:`encode_fractional`; FrameError (``values``) on anything else."""
    (bits,), rest = read_header(_HEADER, section)
    if not 2 <= bits <= 8:
        raise FrameError("values", f"The values have {bits} bits each, not 2 to 8.")
    means, rest = read_floats(rest, 2 ** (bits - 1))
    for mean in means:
        check_scale(float(mean))
    return np.concatenate([means, -means])[unpack_numbers(rest, bits, count)]


def _intervals(magnitudes: NDArray[np.float64], intervals: int) -> NDArray[np.int64]:
    """The interval p - 1 of each of ``[n]`` magnitudes, 0 for the largest ones."""
    present = magnitudes[magnitudes > 0]
    if not len(present):
        return np.full(len(magnitudes), intervals - 1)
    shared = intervals - (len(present) < len(magnitudes))
    highest, lowest = present.max(), present.min()
    ends = highest * (lowest / highest) ** (np.arange(1, shared) / shared)
    # How many of the falling ends are above a magnitude; zero lies beyond them all, in an interval of its own.
    index = shared - 1 - np.searchsorted(ends[::-1], magnitudes, side="right")
    index[magnitudes == 0] = intervals - 1
    return index


COMPRESSOR = Fractional
