"""Deep Gradient Compression (Lin et al., 2018), with a round's difference in place of a step's gradient.

Momentum correction and local accumulation (their eq. 5), momentum factor masking (section 3.2, eq. 6 and 7),
clipping by the norm of what is new before it is accumulated, and a kept share that falls over the first rounds
(section 3.3). The norm they clip at is N^(-1/2) of the one for N nodes together; here ``clip`` is a client's
own. The share falls with the coordinator's round, whichever rounds a client took part in.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from edge_fl.compressors._section import add, check_finite, check_ratio, kept_count, largest
from edge_fl.compressors._sparse import decode_sparse, encode_sparse
from edge_fl.compressors.base import Compressed, Compressor, WarmsUp
from edge_fl.core.errors import ConfigError
from edge_fl.core.randomness import Stream
from edge_fl.wire.context import Context, Vector

__all__ = ["COMPRESSOR", "Dgc", "DgcParameters"]


class DgcParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What DGC takes.

    Parameters
    ----------
    ratio
        The share of entries kept once the warm-up is over.
    momentum
        The momentum m.
    clip
        The largest l2 norm of a round's differences; None: any.
    warmup
        The shares of the rounds 1, 2, ... before that, never fewer than ``ratio``.
    """

    ratio: float = 0.001
    momentum: float = 0.9
    clip: float | None = None
    warmup: tuple[float, ...] = (0.25, 0.0625, 0.015625, 0.004)

    def __post_init__(self) -> None:
        for ratio in (self.ratio, *self.warmup):
            check_ratio(ratio, "dgc")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"dgc's momentum must be in [0, 1), not {self.momentum}.")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"dgc clips at a norm above 0, not {self.clip}.")

    def share(self, round: int) -> float:
        """The share of entries kept in ``round`` (1, 2, ...)."""
        return max(self.ratio, self.warmup[round - 1]) if 1 <= round <= len(self.warmup) else self.ratio


class Dgc(Compressor, WarmsUp):
    """``momentum`` is u and ``accumulated`` is v of the paper."""

    name = "dgc"
    memory = ("momentum", "accumulated")
    Parameters = DgcParameters
    parameters: DgcParameters

    @property
    def warmup_rounds(self) -> int:
        """Those that have a share of their own."""
        return len(self.parameters.warmup)

    def compress(
        self, values: Vector, memory: Mapping[str, Vector], context: Context, stream: Stream
    ) -> Compressed:
        """Send the largest of v; forget u and v where they were sent. RunError on what is not finite."""
        del stream
        check_finite(values)
        u = add(np.float32(self.parameters.momentum) * memory["momentum"], self._clipped(values))
        v = add(memory["accumulated"], u)
        kept = largest(v, kept_count(self.parameters.share(context.round), len(values)))
        section = encode_sparse(v, kept, "golomb")
        u[kept] = v[kept] = np.float32(0)
        return Compressed(section, {"momentum": u, "accumulated": v})

    def _clipped(self, values: Vector) -> Vector:
        clip = self.parameters.clip
        norm = float(np.linalg.norm(values.astype(np.float64)))  # squares of float32 may leave float32's range
        if clip is None or norm <= clip:
            return values
        return (values * (clip / norm)).astype(np.float32)

    @staticmethod
    def decompress(section: memoryview, context: Context) -> Vector:
        """The ``[n]`` float32 with zeros where nothing was sent; FrameError (``values``) on a bad section."""
        return decode_sparse(section, context.count)


COMPRESSOR = Dgc
