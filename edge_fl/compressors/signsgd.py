"""One bit an entry: signSGD (Bernstein et al., 2018), by majority vote or with one magnitude for all.

With a ``step`` the server takes that step in the direction that most clients send (their Algorithm 3), and nothing
else is sent or remembered, and the size of the step stays the same, whatever clients' step sizes do. Without, the
mean magnitude travels too, and the server averages. With ``error_feedback`` that is EF-signSGD (Karimireddy et al.,
2019, Algorithm 1): ``delta = (|p|_1 / n) sign(p)`` of p, the difference and what is remembered, of which ``p -
delta`` is then remembered; otherwise it is the scaled sign of the difference alone. A bit cannot say zero: it counts
as positive, but in a vote a coin is tossed for it, lest all weights without a gradient drift the same way.
"""

import struct
from collections.abc import Mapping

import msgspec
import numpy as np

from edge_fl.compressors._section import add, check_finite, check_scale
from edge_fl.compressors.base import ChoosesRule, Compressed, Compressor
from edge_fl.core.errors import ConfigError
from edge_fl.core.randomness import Stream
from edge_fl.core.server_half import Change, UpdatesModel
from edge_fl.wire.bits import pack_numbers, read_header, unpack_numbers
from edge_fl.wire.context import Context, Vector

__all__ = ["COMPRESSOR", "SignSgd", "SignSgdParameters"]

_HEADER = struct.Struct("<f")  # the scale


class SignSgdParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What signSGD takes.

    Parameters
    ----------
    error_feedback
        Add to each round's differences what earlier rounds could not say. A vote has no error feedback.
    step
        How far a majority moves a weight; 0 averages scaled signs instead.
    """

    error_feedback: bool = True
    step: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.step < float("inf"):
            raise ConfigError(f"signsgd's server takes a step of at least 0, not {self.step}.")


class SignSgd(Compressor, ChoosesRule, UpdatesModel):
    """Signs, and perhaps their mean magnitude; the error is the ``residual``."""

    name = "signsgd"
    Parameters = SignSgdParameters
    parameters: SignSgdParameters

    def __init__(self, parameters: SignSgdParameters) -> None:
        super().__init__(parameters)
        remembers = parameters.error_feedback and not parameters.step
        self.memory = ("residual",) if remembers else ()

    @property
    def rule(self) -> str | None:
        """``vote``, where there is a step to vote on."""
        return "vote" if self.parameters.step else None

    def server_update(self, round: int, change: Change) -> Change:
        """The signs of a vote times the step."""
        del round
        step = self.parameters.step or 1.0
        return {name: step * array for name, array in change.items()}

    def compress(
        self, values: Vector, memory: Mapping[str, Vector], context: Context, stream: Stream
    ) -> Compressed:
        """Send the signs and the mean magnitude; RunError on what is not finite."""
        del context
        check_finite(values)
        if self.parameters.step:
            negative = np.where(values == 0, stream.uint32(len(values)) >> 31, values < 0)
            return Compressed(_HEADER.pack(1.0) + pack_numbers(negative, 1), {})
        feedback = self.parameters.error_feedback
        p = add(values, memory["residual"]) if feedback else values
        scale = np.float32(np.abs(p).mean(dtype=np.float64)) if len(p) else np.float32(0)
        section = _HEADER.pack(scale) + pack_numbers(p < 0, 1)
        return Compressed(section, {"residual": p - np.where(p < 0, -scale, scale)} if feedback else {})

    @staticmethod
    def decompress(section: memoryview, context: Context) -> Vector:
        """The ``[n]`` float32, each the scale or its negative; FrameError (``values``) on a bad section."""
        (scale,), rest = read_header(_HEADER, section)
        check_scale(scale)
        levels = np.array([scale, -scale], dtype=np.float32)
        return levels[unpack_numbers(rest, 1, context.count)]


COMPRESSOR = SignSgd
