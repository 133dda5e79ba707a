"""Updates that workers hold: what they tell of each, what they make of many, and what of that is believed."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from edge_fl.aggregation.bounds import Size, size_of
from edge_fl.aggregation.exact_sums import Counted, ExactSum, ExactSums, Reach, check_partial
from edge_fl.aggregation.rules import Rule
from edge_fl.core.divergence import farthest
from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout
from edge_fl.wire.context import Decoder
from edge_fl.wire.frame import Frame, decode_frame, encode_frame
from edge_fl.wire.sum_frame import PartialSum, SumHeader, decode_sum, encode_sum
from edge_fl.wire.values import WITHHELD

__all__ = ["HeldUpdate", "SumsOfWorkers", "held_update", "sum_frame"]


@dataclass(frozen=True)
class HeldUpdate:
    """What is told of an update that a worker holds.

    ``frame`` is the update without its values, which was of ``length`` bytes. ``sent`` says which of its entries were,
    eight a byte, where that is not all. ``farthest`` is the tensor that it changes most, and by how much. ``size`` and
    ``reach`` are as :class:`edge_fl.aggregation.exact_sums.Held` has them.
    """

    frame: bytes
    length: int
    sent: bytes | None
    farthest: tuple[str, float]
    size: Size
    reach: Reach

    def without_values(self, layout: Layout, decoders: Mapping[str, Decoder]) -> Frame:
        """The update but for its values; raises FrameError where ``sent`` does not fit its pattern."""
        frame = decode_frame(self.frame, layout, b"", decoders)
        if self.sent is None:
            return frame
        entries = sum(math.prod(frame.selection.shape(tensor)) for tensor in layout.parameters)
        if len(self.sent) != -(-entries // 8):
            raise FrameError("values", "A worker tells of other entries that were sent than the pattern has.")
        sent = np.unpackbits(np.frombuffer(self.sent, np.uint8), count=entries).astype(np.bool_)
        return replace(frame, sent=sent)


def held_update(frame: Frame, length: int, *, layout: Layout, reach: Reach) -> HeldUpdate:
    """What is to be told of a decoded update of ``length`` bytes."""
    return HeldUpdate(
        frame=encode_frame(msgspec.structs.replace(frame.header, values=WITHHELD), frame.pattern, frame.values),
        length=length,
        sent=None if frame.sent is None else np.packbits(frame.sent).tobytes(),
        farthest=farthest(layout, frame.values),
        size=size_of(layout, frame.values, frame.header.samples),
        reach=reach,
    )


def sum_frame(header: SumHeader, layout: Layout, total: ExactSum) -> bytes:
    """What a worker sends of the updates that it added up; ``header`` says all but how many these are."""
    header = msgspec.structs.replace(header, clients=total.clients, weight=total.weight)
    return encode_sum(header, layout, total.tensors())


class SumsOfWorkers(ExactSums):
    """Exact sums of a round whose updates workers hold, of partial sums of theirs.

    Parameters
    ----------
    layout
        The model's.
    rule
        What is made of the sums.
    run, round
        Whose updates these are.
    """

    def __init__(self, layout: Layout, rule: Rule, *, run: str, round: int) -> None:
        super().__init__(layout, rule)
        self._run, self._round = run, round

    def _add_up(self, total: ExactSum, counted: Sequence[Counted]) -> None:
        exponents = tuple(total.exponents[tensor.name] for tensor in self._layout.tensors)
        header = SumHeader(self._run, self._round, self._layout.digest, 1, 1, exponents)
        for some, frame in self._partial_sums(header, counted):
            total.merge(self._checked(frame, header, some))
        if total.clients != len(counted):
            raise FrameError("values", f"Workers added up {total.clients} updates in place of {len(counted)}.")

    @abstractmethod
    def _partial_sums(
        self, header: SumHeader, counted: Sequence[Counted]
    ) -> Iterator[tuple[Sequence[Counted], bytes]]:
        """Have workers add up all updates: what some of them count, and their sum as a frame."""

    def _checked(self, frame: bytes, asked: SumHeader, counted: Sequence[Counted]) -> PartialSum:
        """A worker's sum of the ``counted`` updates of this round, as far as they can come to it; FrameError."""
        found = decode_sum(frame, self._layout)
        theirs = (found.header.run, found.header.round, found.header.exponents)
        if theirs != (asked.run, asked.round, asked.exponents):
            raise FrameError("stale", "A worker added up updates of another round, or to other whole numbers.")
        weight = sum(each.weight for each in counted)
        if (found.header.clients, found.header.weight) != (len(counted), weight):
            raise FrameError(
                "values", f"A worker added up {found.header.clients} updates in place of {len(counted)}."
            )
        check_partial(self._layout, found, self._reach)
        return found
