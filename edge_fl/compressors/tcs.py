"""Time-Correlated Sparsification (Ozfatura, Ozfatura and Gunduz, 2021): their Algorithms 2 and 3.

Weights that moved most in the last round are likely to move most in the next. So all clients send the entries of one
*global mask*, the largest of the last change of the model (eq. 6), and need not say where they are. Each adds the
largest of the others, its *local mask*, with positions in the block code of section II-E; what neither mask holds is
fed back (eq. 11 and 12). The paper's variants are settings: ``local_steps`` H of the run and ``bits`` q of an entry
make TCS-LH-Qq, ``fairness`` TCS-LF and TCS-PLF, and ``server.momentum`` is the global momentum of section II-D.

What is read into the paper, and what differs:

- It has every client take part in every round, and find the mask in the changes it is sent. Here anyone may be picked,
  so the server sends the mask of the round with the model, as positions in Golomb code.
- The global mask is over the whole model, and a client sends what of it its pattern keeps. A local share is one of the
  entries kept.
- Eq. (13) would take every entry where the K-th largest is 0. Masks have exactly K entries (eq. 6), of equal ones the
  first.
- Eq. (14) and (15) bound a layer's share from below by what they call its maximum. It is the minimum that section III
  gives. A layer is a tensor here, and where its minima add up to more than K there are more than K.
- Eq. (16) and Algorithm 3 disagree: ``w = beta w + g`` is used, then ``theta = theta - eta w``, the mask being that of
  g. A round's change is ``-eta g``, so that what is remembered keeps the step size that it was made with
  (:mod:`edge_fl.recipes.server_momentum`).
- Algorithm 3 takes the plain mean of clients that have equally many samples; here they are weighed as the method says.
- Quantisation takes all entries that are sent together. Its error is dropped by eq. (11) and fed back by line 13 of
  Algorithm 2 if that is taken at its word: ``quantisation_feedback``. Dropping it is the default: on Fashion-MNIST
  (MLP 784-256-256-10, 10 clients, H = 4, step size 0.2, mean of rounds 51 to 60, two seeds) the two came to the same at
  5 bits (75.7 %), and at 3 bits dropping it did better (76.7 against 75.4 %).
- The first round knows no change, so it has no global mask, nor has a dense round of the ``warmup``. The paper's is 5
  epochs; how many rounds that is depends on H.
"""

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.compressors._section import add, check_finite, check_ratio, kept_count, largest
from edge_fl.compressors.base import Compressed, Compressor, Shares, WarmsUp
from edge_fl.compressors.fractional import decode_fractional, encode_fractional
from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.layout import Layout
from edge_fl.core.randomness import Stream
from edge_fl.core.server_half import Change, State, Stateful, UpdatesModel
from edge_fl.wire.bits import read_floats, read_header
from edge_fl.wire.context import Context, Vector
from edge_fl.wire.positions import (
    Positions,
    block_width,
    decode_block,
    decode_golomb,
    encode_block,
    encode_golomb,
    golomb_width,
)

__all__ = ["COMPRESSOR", "Tcs", "TcsParameters"]

Mask = NDArray[np.bool_]

_SHARED = struct.Struct("<BI")  # the width of a remainder, the number of positions
_HEADER = struct.Struct("<BBII")  # code of the entries, width of a position, CRC-32 of the mask, local entries
_FLOAT32, _FRACTIONAL = 0, 1
_WHOLE = 32  # bits of an entry that is not quantised


class TcsParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What TCS takes; shares are of the entries, in (0, 1].

    Parameters
    ----------
    global_ratio
        The paper's phi_global, the share of the global mask.
    local_ratio
        The paper's phi_local, the share that a client adds.
    fairness
        ``plf`` keeps a share of every layer in the global mask, ``lf`` in each local mask, too.
    global_minimum
        That share of a layer in the global mask.
    local_minimum
        That share of a layer in a local mask.
    bits
        2 to 8 an entry with its sign, 5 in the paper's Q5; or 32, not quantised.
    quantisation_feedback
        Keep what quantisation loses for the next round.
    warmup
        The number of rounds at the start in which everything is sent, as float32.
    """

    global_ratio: float = 0.01
    local_ratio: float = 0.001
    fairness: Literal["none", "lf", "plf"] = "none"
    global_minimum: float = 0.001
    local_minimum: float = 0.0004
    bits: int = _WHOLE
    quantisation_feedback: bool = False
    warmup: int = 0

    def __post_init__(self) -> None:
        for ratio in (self.global_ratio, self.local_ratio, self.global_minimum, self.local_minimum):
            check_ratio(ratio, "tcs")
        if not (2 <= self.bits <= 8 or self.bits == _WHOLE):
            raise ConfigError(f"tcs has 2 to 8 bits an entry, or {_WHOLE}, not {self.bits}.")
        if self.warmup < 0:
            raise ConfigError(f"tcs warms up for a number of rounds, not {self.warmup}.")


class Tcs(Compressor, Shares, WarmsUp, UpdatesModel, Stateful):
    """The entries of two masks; the rest is the ``residual``, e of the paper."""

    name = "tcs"
    memory = ("residual",)
    Parameters = TcsParameters
    parameters: TcsParameters

    def __init__(self, parameters: TcsParameters) -> None:
        super().__init__(parameters)
        self._shared = b""

    @property
    def warmup_rounds(self) -> int:
        """The dense ones."""
        return self.parameters.warmup

    def shared(self) -> bytes:
        """The global mask of the coming round; empty where it has none."""
        return self._shared

    def server_update(self, round: int, change: Change) -> Change:
        """Note where the model changed most (eq. 6 and 14); the change stays as it is."""
        self._shared = b"" if round < self.parameters.warmup else self._mask_of(change)
        return change

    def state_dict(self) -> State:
        """The mask's bytes as they are shared."""
        return {"shared": np.frombuffer(bytearray(self._shared), dtype=np.uint8)}

    def load_state_dict(self, layout: Layout, learned: State) -> None:
        """Go on from what :meth:`state_dict` gave."""
        del layout
        self._shared = learned["shared"].tobytes() if "shared" in learned else b""

    def compress(
        self, values: Vector, memory: Mapping[str, Vector], context: Context, stream: Stream
    ) -> Compressed:
        """Send ``values + residual`` where the masks are; RunError if not finite, FrameError on a bad mask."""
        del stream
        check_finite(values)
        total = add(values, memory["residual"])
        dense = context.round <= self.parameters.warmup
        sent = _global_mask(context)
        others = np.flatnonzero(~sent)
        local = np.arange(len(others)) if dense else self._local(total, sent, others, context.sizes)
        sent[others[local]] = True
        entries = total[sent]
        if dense or self.parameters.bits == _WHOLE:
            code, coded, back = _FLOAT32, entries.astype("<f4").tobytes(), entries
        else:
            code, coded = _FRACTIONAL, encode_fractional(entries, self.parameters.bits)
            back = decode_fractional(memoryview(coded), len(entries))
        total[sent] -= back if self.parameters.quantisation_feedback else entries
        width = _local_width(len(local), len(others))
        header = _HEADER.pack(code, width, zlib.crc32(context.shared), len(local))
        positions = encode_block(local, width, len(others)) if len(local) < len(others) else b""
        return Compressed(header + positions + coded, {"residual": total})

    @staticmethod
    def decompress(section: memoryview, context: Context) -> Vector:
        """The ``[n]`` float32 with zeros where nothing was sent.

        Raises FrameError (``values``) on a bad section, and on one that was made with another global mask.
        """
        (code, width, check, k), rest = read_header(_HEADER, section)
        if check != zlib.crc32(context.shared):
            raise FrameError("values", "The values were made with another global mask than the one of the round.")
        sent = _global_mask(context)
        others = np.flatnonzero(~sent)
        if k > len(others):
            raise FrameError("values", f"There are {k} local entries where at most {len(others)} belong.")
        octets = -(-(k * (1 + width) - (-len(others) // (1 << width))) // 8) if k < len(others) else 0
        local = decode_block(rest[:octets], width=width, k=k, count=len(others)) if octets else np.arange(k)
        sent[others[local]] = True
        vector = np.zeros(context.count, dtype=np.float32)
        vector[sent] = _entries(code, rest[octets:], int(np.count_nonzero(sent)))
        return vector

    def _mask_of(self, change: Change) -> bytes:
        own, sizes = self.parameters, [array.size for array in change.values()]
        minimum = 0.0 if own.fairness == "none" else own.global_minimum
        flat = np.concatenate([array.reshape(-1) for array in change.values()] or [np.empty(0)])
        kept = _top(flat, sizes, _least(sizes, minimum), kept_count(own.global_ratio, len(flat)))
        width = golomb_width(len(kept), len(flat))
        return _SHARED.pack(width, len(kept)) + encode_golomb(kept, width)

    def _local(self, total: Vector, mask: Mask, others: Positions, sizes: Sequence[int]) -> Positions:
        """Which of the ``others``, the entries that the global ``mask`` leaves out, are in the local one."""
        own = self.parameters
        ends = np.cumsum(sizes)
        left = [
            size - int(np.count_nonzero(mask[end - size : end])) for size, end in zip(sizes, ends, strict=True)
        ]
        least = _least(sizes, own.local_minimum if own.fairness == "lf" else 0.0)
        return _top(total[others], left, least, kept_count(own.local_ratio, len(total)))


def _least(sizes: Sequence[int], minimum: float) -> list[int]:
    """How many entries of each layer a mask must have: the right sides of eq. (14) and (15)."""
    return [math.ceil(minimum * size) for size in sizes]


def _top(values: NDArray[Any], sizes: Sequence[int], least: Sequence[int], k: int) -> Positions:
    """The ``k`` largest of ``values`` (S_top), of each stretch of ``sizes`` as many as it ``least`` must have."""
    top = np.zeros(len(values), dtype=np.bool_)
    start = 0
    for size, n in zip(sizes, least, strict=True):
        top[start + largest(values[start : start + size], min(n, size))] = True
        start += size
    others = np.flatnonzero(~top)
    free = min(len(others), max(0, k - int(np.count_nonzero(top))))
    top[others[largest(values[others], free)]] = True
    return np.flatnonzero(top)


def _global_mask(context: Context) -> Mask:
    """``[n]``, true for the kept entries that the mask of the round has; FrameError (``values``) on a bad one."""
    mask = np.zeros(sum(tensor.size for tensor in context.selection.layout.parameters), dtype=np.bool_)
    if context.shared:
        (width, k), rest = read_header(_SHARED, memoryview(context.shared))
        mask[decode_golomb(rest, width=width, k=k, count=len(mask))] = True
    return context.kept(mask)


def _local_width(k: int, n: int) -> int:
    """The bits of a position, none where all ``n`` are there: those are not sent."""
    return block_width(k, n) if k < n else 0


def _entries(code: int, section: memoryview, count: int) -> Vector:
    if code == _FRACTIONAL:
        return decode_fractional(section, count)
    if code != _FLOAT32:
        raise FrameError("values", f"There is no code {code} of entries.")
    entries, rest = read_floats(section, count)
    if len(rest):
        raise FrameError("values", f"The compressed values go on for {len(rest)} bytes after their last number.")
    return entries


COMPRESSOR = Tcs
