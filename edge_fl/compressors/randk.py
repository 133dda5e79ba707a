"""Random-k sparsification with error feedback (Stich et al., *Sparsified SGD with Memory*, 2018).

The k positions follow from a key of 8 bytes that both ends expand, so only the key and the entries travel. They
are not scaled up by n/k: what is not sent is remembered, and comes later.
"""

import struct
from collections.abc import Mapping

import msgspec
import numpy as np

from edge_fl.compressors._section import add, check_finite, check_ratio, kept_count
from edge_fl.compressors.base import Compressed, Compressor
from edge_fl.core.errors import FrameError
from edge_fl.core.randomness import Stream
from edge_fl.wire.bits import read_floats, read_header
from edge_fl.wire.context import Context, Vector

__all__ = ["COMPRESSOR", "RandK", "RandKParameters"]

_HEADER = struct.Struct("<Q")  # the key of the stream that the positions are drawn from


class RandKParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What random-k takes.

    Parameters
    ----------
    ratio
        The share k of the entries, in (0, 1].
    """

    ratio: float = 0.01

    def __post_init__(self) -> None:
        check_ratio(self.ratio, "randk")


class RandK(Compressor):
    """Entries drawn anew each round; the rest is the ``residual``."""

    name = "randk"
    memory = ("residual",)
    Parameters = RandKParameters
    parameters: RandKParameters

    def compress(
        self, values: Vector, memory: Mapping[str, Vector], context: Context, stream: Stream
    ) -> Compressed:
        """Send ``values + residual`` at positions drawn from a key out of ``stream``; RunError if not finite."""
        del context
        check_finite(values)
        residual = add(values, memory["residual"])
        low, high = (int(word) for word in stream.uint32(2))
        key = high << 32 | low
        kept = Stream(key).subset(len(values), kept_count(self.parameters.ratio, len(values)))
        section = _HEADER.pack(key) + residual[kept].astype("<f4").tobytes()
        residual[kept] = np.float32(0)
        return Compressed(section, {"residual": residual})

    @staticmethod
    def decompress(section: memoryview, context: Context) -> Vector:
        """The ``[n]`` float32 with zeros where nothing was sent; FrameError (``values``) on a bad section."""
        count = context.count
        (key,), rest = read_header(_HEADER, section)
        k, left = divmod(len(rest), 4)
        if left or k > count:
            raise FrameError("values", f"{len(rest)} bytes are not the values of some of {count} entries.")
        vector = np.zeros(count, dtype=np.float32)
        vector[Stream(key).subset(count, k)] = read_floats(rest, k)[0]
        return vector


COMPRESSOR = RandK
