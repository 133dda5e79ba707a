"""Top-k sparsification with error feedback (Stich et al., *Sparsified SGD with Memory*, 2018).

The k entries of largest magnitude travel as float32 with their positions; the others are remembered and added to
the next differences, so that nothing is lost but time.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from edge_fl.compressors._section import add, check_finite, check_ratio, kept_count, largest
from edge_fl.compressors._sparse import Code, decode_sparse, encode_sparse
from edge_fl.compressors.base import Compressed, Compressor
from edge_fl.core.randomness import Stream
from edge_fl.wire.context import Context, Vector

__all__ = ["COMPRESSOR", "TopK", "TopKParameters"]


class TopKParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What top-k takes.

    Parameters
    ----------
    ratio
        The share k of the entries, in (0, 1].
    positions
        The code of the positions: ``golomb``, or ``block``.
    """

    ratio: float = 0.01
    positions: Code = "golomb"

    def __post_init__(self) -> None:
        check_ratio(self.ratio, "topk")


class TopK(Compressor):
    """Entries of largest magnitude, of equal ones the first; the rest is the ``residual``."""

    name = "topk"
    memory = ("residual",)
    Parameters = TopKParameters
    parameters: TopKParameters

    def compress(
        self, values: Vector, memory: Mapping[str, Vector], context: Context, stream: Stream
    ) -> Compressed:
        """Send the largest of ``values + residual`` (their Algorithm 1); RunError on what is not finite."""
        del context, stream
        check_finite(values)
        residual = add(values, memory["residual"])
        kept = largest(residual, kept_count(self.parameters.ratio, len(values)))
        section = encode_sparse(residual, kept, self.parameters.positions)
        residual[kept] = np.float32(0)
        return Compressed(section, {"residual": residual})

    @staticmethod
    def decompress(section: memoryview, context: Context) -> Vector:
        """The ``[n]`` float32 with zeros where nothing was sent; FrameError (``values``) on a bad section."""
        return decode_sparse(section, context.count)


COMPRESSOR = TopK
