"""FedPAQ's unbiased stochastic quantiser (Reisizadeh et al., 2020, Example 1; QSGD, Alistarh et al., 2017).

An entry x becomes one of the two nearest levels ``scale * l / s``, l in -s..s, each with the probability that
makes x the mean; s is ``2**(bits - 1) - 1``, so that zero stays zero. One bit has room for the two levels -scale
and scale.

The papers' scale is the l2 norm, whose levels are the coarser the longer the vector: at 8 bits and 270,000
entries of one size three quarters become zero. The default here is the largest magnitude, which is unbiased too
and errs by at most ``scale / s`` with a scale that does not grow with the length; ``norm = "l2"`` is the
papers'.
"""

import struct
from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np

from edge_fl.compressors._section import LARGEST, check_finite, check_scale
from edge_fl.compressors.base import Compressed, Compressor
from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.randomness import Stream
from edge_fl.wire.bits import pack_numbers, read_header, unpack_numbers
from edge_fl.wire.context import Context, Vector

__all__ = ["COMPRESSOR", "FedPaq", "FedPaqParameters"]

_HEADER = struct.Struct("<Bf")  # bits an entry, the scale


class FedPaqParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What FedPAQ takes.

    Parameters
    ----------
    bits
        Bits an entry, 1 to 8.
    norm
        What the scale is: the largest magnitude (``max``), or the norm (``l2``).
    """

    bits: int = 8
    norm: Literal["max", "l2"] = "max"

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise ConfigError(f"fedpaq has 1 to 8 bits an entry, not {self.bits}.")


class FedPaq(Compressor):
    """Quantised entries, their mean over many draws the entries themselves; nothing is remembered."""

    name = "fedpaq"
    Parameters = FedPaqParameters
    parameters: FedPaqParameters

    def compress(
        self, values: Vector, memory: Mapping[str, Vector], context: Context, stream: Stream
    ) -> Compressed:
        """Round each entry up or down by a draw of ``stream``; RunError on what is not finite."""
        del memory, context
        check_finite(values)
        bits, scale = self.parameters.bits, self._scale(values)
        steps = _steps(bits)
        relative = values.astype(np.float64) / (scale or 1.0)
        height = (relative + 1.0) * (steps / 2)
        below = np.floor(height)
        code = below + (stream.uint32(len(values)) < (height - below) * 2.0**32)
        return Compressed(_HEADER.pack(bits, scale) + pack_numbers(code, bits), {})

    def _scale(self, values: Vector) -> float:
        if self.parameters.norm == "l2":
            norm = float(np.linalg.norm(values.astype(np.float64)))
            return float(np.float32(min(norm, float(LARGEST))))
        return float(np.abs(values).max(initial=0.0))

    @staticmethod
    def decompress(section: memoryview, context: Context) -> Vector:
        """The ``[n]`` float32, each a level; FrameError (``values``) on a bad section."""
        (bits, scale), rest = read_header(_HEADER, section)
        check_scale(scale)
        if not 1 <= bits <= 8:
            raise FrameError("values", f"The values have {bits} bits each, not 1 to 8.")
        steps = _steps(bits)
        codes = unpack_numbers(rest, bits, context.count)
        if codes.max(initial=0) > steps:
            raise FrameError("values", f"A value is beyond the {steps + 1} levels that {bits} bits have.")
        levels: Vector = (scale * ((2.0 * np.arange(steps + 1) - steps) / steps)).astype(np.float32)
        return levels[codes]


def _steps(bits: int) -> int:
    """Steps from the lowest level to the highest: even, so that zero is a level, but for one bit."""
    return max(1, (1 << bits) - 2)


COMPRESSOR = FedPaq
