"""One bit an entry and one magnitude for all: signSGD (Bernstein et al., 2018), scaled and with error feedback.

With ``error_feedback`` this is EF-signSGD (Karimireddy et al., 2019, Algorithm 1): ``delta = (|p|_1 / n)
sign(p)`` of p, the difference and what is remembered, of which ``p - delta`` is then remembered. Without, it is
the scaled sign of the difference alone. Zero counts as positive, as a bit cannot say otherwise.
"""

import struct
from collections.abc import Mapping

import msgspec
import numpy as np

from edge_fl.compressors._section import add, check_finite, check_scale, pack_numbers, read_header, unpack_numbers
from edge_fl.compressors.base import Compressed, Compressor, Vector
from edge_fl.randomness import Stream

__all__ = ["COMPRESSOR", "SignSgd", "SignSgdParameters"]

_HEADER = struct.Struct("<f")  # the scale


class SignSgdParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``error_feedback`` adds to each round's differences what earlier rounds could not say."""

    error_feedback: bool = True


class SignSgd(Compressor):
    """Signs times the mean magnitude; the error is the ``residual``."""

    name = "signsgd"
    memory = ("residual",)
    Parameters = SignSgdParameters
    parameters: SignSgdParameters

    def compress(self, values: Vector, memory: Mapping[str, Vector], *, round: int, stream: Stream) -> Compressed:
        """Send the signs and the mean magnitude; RunError on what is not finite."""
        del round, stream
        check_finite(values)
        feedback = self.parameters.error_feedback
        p = add(values, memory["residual"]) if feedback else values
        scale = np.float32(np.abs(p).mean(dtype=np.float64)) if len(p) else np.float32(0)
        section = _HEADER.pack(scale) + pack_numbers(p < 0, 1)
        return Compressed(section, {"residual": p - np.where(p < 0, -scale, scale)} if feedback else {})

    @staticmethod
    def decompress(section: memoryview, count: int) -> Vector:
        """The ``[count]`` float32, each the scale or its negative; FrameError (``values``) on a bad section."""
        (scale,), rest = read_header(_HEADER, section)
        check_scale(scale)
        levels = np.array([scale, -scale], dtype=np.float32)
        return levels[unpack_numbers(rest, 1, count)]


COMPRESSOR = SignSgd
