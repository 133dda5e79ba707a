"""Sparse Ternary Compression (Sattler et al., 2019), in both directions.

Of the k entries of largest magnitude only the sign travels, and one magnitude for all of them (Algorithm 1); the
error is fed back (Algorithm 2); the distances between positions are Golomb coded with the parameter b*
(Algorithm 3). An entry of zero has no sign and is never sent, so there may be fewer than k.
The server does the same to the change that it makes of a round (Algorithm 2, lines 18 to 20), with a residual of its
own; devices that were there not long ago get the changes since (section V-B) and others the model.
"""

import struct
from collections.abc import Mapping

import msgspec
import numpy as np

from edge_fl.compressors._section import add, check_finite, check_ratio, check_scale, kept_count, largest
from edge_fl.compressors.base import Compressed, Compressor, SendsChanges
from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout
from edge_fl.core.randomness import Stream
from edge_fl.core.server_half import State, Stateful
from edge_fl.wire.bits import pack_numbers, read_header, unpack_numbers
from edge_fl.wire.context import Context, Vector
from edge_fl.wire.positions import decode_golomb, encode_golomb, golomb_width

__all__ = ["COMPRESSOR", "Stc", "StcParameters"]

_HEADER = struct.Struct("<BIf")  # the width of a remainder, the number of entries, mu


class StcParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What STC takes.

    Parameters
    ----------
    ratio
        The paper's p, the share of entries that a client keeps, in (0, 1].
    down
        The share that the server keeps; 0: it sends models.
    """

    ratio: float = 0.01
    down: float = 0.01

    def __post_init__(self) -> None:
        check_ratio(self.ratio, "stc")
        if self.down:
            check_ratio(self.down, "stc's server")


class Stc(Compressor, SendsChanges, Stateful):
    """Differences of three values, -mu, 0 and mu; the error is the ``residual``."""

    name = "stc"
    memory = ("residual",)
    Parameters = StcParameters
    parameters: StcParameters

    def __init__(self, parameters: StcParameters) -> None:
        super().__init__(parameters)
        self._residual: Vector | None = None

    def compress(
        self, values: Vector, memory: Mapping[str, Vector], context: Context, stream: Stream
    ) -> Compressed:
        """Send signs of the largest of ``values + residual``, and their mean size; RunError if not finite."""
        del context, stream
        check_finite(values)
        residual = add(values, memory["residual"])
        return Compressed(_take_largest(residual, self.parameters.ratio), {"residual": residual})

    @property
    def sends_changes(self) -> bool:
        """Unless told that models travel whole."""
        return self.parameters.down > 0

    def encode_change(self, values: Vector) -> bytes:
        """The section of the largest of ``values`` plus the server's residual, which keeps the rest."""
        check_finite(values)
        self._residual = values if self._residual is None else add(values, self._residual)
        return _take_largest(self._residual, self.parameters.down)

    def state_dict(self) -> State:
        """The server's residual (``[n]`` float32)."""
        return {} if self._residual is None else {"residual": self._residual}

    def load_state_dict(self, layout: Layout, learned: State) -> None:
        """Take the residual back."""
        del layout
        self._residual = learned["residual"].copy() if learned else None

    @staticmethod
    def decompress(section: memoryview, context: Context) -> Vector:
        """The ``[n]`` float32, each -mu, 0 or mu; FrameError (``values``) on a bad section."""
        count = context.count
        (width, k, mu), rest = read_header(_HEADER, section)
        check_scale(mu)
        if k > count:
            raise FrameError("values", f"There are {k} entries where at most {count} belong.")
        octets = -(-k // 8)
        negative = unpack_numbers(rest[:octets], 1, k)
        vector = np.zeros(count, dtype=np.float32)
        vector[decode_golomb(rest[octets:], width=width, k=k, count=count)] = np.where(negative, -mu, mu)
        return vector


def _take_largest(residual: Vector, ratio: float) -> bytes:
    """The section of the largest ``ratio`` of ``residual``, which is left with what the section does not say."""
    kept = largest(residual, kept_count(ratio, len(residual)))
    kept = kept[residual[kept] != 0]
    entries = residual[kept]
    mu = np.float32(np.abs(entries).mean(dtype=np.float64)) if len(kept) else np.float32(0)
    width = golomb_width(len(kept), len(residual))
    residual[kept] -= np.copysign(mu, entries)
    return _HEADER.pack(width, len(kept), mu) + pack_numbers(entries < 0, 1) + encode_golomb(kept, width)


COMPRESSOR = Stc
