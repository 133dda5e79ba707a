"""A round whose updates stay with the workers that trained them, which add them up; sums come back, not updates."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from broker.acceptance import Expected, check_update, diverged
from device_sim.simulation.parts import PartsTrainer
from device_sim.simulation.trainer import Call
from device_sim.simulation.worker import HeldUpdate
from edge_fl.aggregation.bounds import WHOLE, Clip, Size
from edge_fl.aggregation.exact_sums import Counted, ExactSum, ExactSums, Held, Reach, check_partial
from edge_fl.aggregation.rules import Rule
from edge_fl.core.errors import FrameError, RunError
from edge_fl.core.layout import Layout
from edge_fl.wire.frame import Frame, frame_header, largest_frame
from edge_fl.wire.sum_frame import PartialSum, SumHeader, decode_sum

__all__ = ["HeldRound", "check_held"]

_log = logging.getLogger(__name__)

_TRIES = 3  # at adding up, between which lost parts are trained again


class HeldRound(ExactSums):
    """It is opened with a round's model, and has workers train the round's clients and hold their updates.

    As the round closes, it is known what each counts and how fine the whole numbers are: then workers add up. Where a
    worker is lost, others train its parts again, to the same bits, and add them up.

    Parameters
    ----------
    layout
        The model's.
    rule
        What is made of the sums.
    trainer
        Has workers.
    model
        The frame that is trained.
    number
        That of the round.
    recall
        The calls of these clients once more.
    """

    def __init__(
        self,
        layout: Layout,
        rule: Rule,
        *,
        trainer: PartsTrainer,
        model: bytes,
        number: int,
        recall: Callable[[Sequence[str]], list[Call]],
    ) -> None:
        super().__init__(layout, rule)
        self._trainer, self._model, self._recall = trainer, model, recall
        self._run, self._round = frame_header(model).run, number
        self._clients: dict[int, list[str]] = {}  # of each part
        self._bits: dict[int, list[_Bits]] = {}
        self._places: list[tuple[int, int]] = []  # of the updates that count

    def train(self, calls: Iterable[Call], count: int) -> Iterator[tuple[HeldUpdate, Held]]:
        """Have workers do these calls: what is told of each update, and where it is, in their order."""
        for part, clients, updates in self._trainer.hold(self._model, calls, count):
            self._remember(part, clients, updates)
            for number, update in enumerate(updates):
                yield update, Held(update.size, update.reach, part, number)

    def _remember(self, part: int, clients: list[str], updates: Sequence[HeldUpdate]) -> None:
        """What is asked of a part if its worker is lost."""
        self._clients[part], self._bits[part] = clients, [_Bits.of(update) for update in updates]

    def add_held(self, held: Held, samples: int, discount: float = 1, *, clip: Clip = WHOLE) -> None:
        """Count an update, as :meth:`edge_fl.aggregation.exact_sums.ExactAccumulator.add` would."""
        self._take(held.reach, samples, discount, clip)
        self._places.append((held.part, held.number))

    def _add_up(self, total: ExactSum, counted: Sequence[Counted]) -> None:
        parts: dict[int, list[tuple[int, Counted]]] = {}
        for (part, number), each in zip(self._places, counted, strict=True):
            parts.setdefault(part, []).append((number, each))
        exponents = tuple(total.exponents[tensor.name] for tensor in self._layout.tensors)
        header = SumHeader(self._run, self._round, self._layout.digest, 1, 1, exponents)
        for _ in range(_TRIES):
            sums, lost = self._trainer.add_up(header, parts)
            for some, frame in sums:
                total.merge(self._checked(frame, header, [each for part in some for _, each in parts[part]]))
            if not lost:
                break
            parts = self._held_again({part: parts[part] for part in lost})
        else:
            raise RunError(
                f"Workers were lost {_TRIES} times before round {self._round} was added up: see that they have memory "
                "enough, and continue the run with --resume."
            )
        if total.clients != len(counted):
            raise FrameError("values", f"Workers added up {total.clients} updates in place of {len(counted)}.")

    def _checked(self, frame: bytes, asked: SumHeader, counted: Sequence[Counted]) -> PartialSum:
        """A partial sum of this round and of these updates, as far as they can come to it."""
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

    def _held_again(self, lost: dict[int, list[tuple[int, Counted]]]) -> dict[int, list[tuple[int, Counted]]]:
        """Have other workers train these parts; what counts of them, by their new numbers."""
        _log.warning("round %d: parts that a lost worker held are trained again (%d)", self._round, len(lost))
        calls = (self._recall(self._clients[part]) for part in lost)
        again = {}
        for before, (part, clients, updates) in zip(
            list(lost), self._trainer.hold_again(self._model, calls), strict=True
        ):
            self._remember(part, clients, updates)
            again[part] = lost[before]
            if self._bits[part] != self._bits.pop(before):
                raise RunError(
                    f"Round {self._round} came to other bits on another host: train on processors of one kind."
                )
        return again


def check_held(update: HeldUpdate, asked: Expected) -> Frame:
    """Hold an update that a worker has against what was asked, as :func:`broker.acceptance.check_update` does.

    What a worker says is within what its clients could have trained. Whether they did, only the worker knows.

    Raises FrameError.
    """
    frame = check_update(update.frame, replace(asked, withheld=True))
    layout, (name, change) = asked.layout, update.farthest
    if not 0 < update.length <= largest_frame(layout):
        raise FrameError("oversize", f"The update has {update.length} bytes.")
    if not change <= asked.max_change:
        raise diverged(name, change)
    if update.reach.keys() != {tensor.name for tensor in layout.tensors}:
        raise FrameError("values", "A worker tells the reach of other tensors than the model's.")
    if not all(0 <= each < math.inf for each in update.reach.values()) or not all(
        each >= 0 for each in update.size
    ):
        raise FrameError("not-finite", "A worker tells of an update that is not finite, or less than 0.")
    most = 1.0 if asked.recipe.rule.signs else change
    if any(update.reach[tensor.name] > most for tensor in layout.parameters):
        raise FrameError("values", "A worker tells of an update that reaches farther than its largest change.")
    if update.sent is None:
        return frame
    entries = sum(math.prod(frame.selection.shape(tensor)) for tensor in layout.parameters)
    if len(update.sent) != -(-entries // 8):
        raise FrameError("values", "A worker tells of other entries that were sent than the pattern has.")
    sent = np.unpackbits(np.frombuffer(update.sent, np.uint8), count=entries).astype(np.bool_)
    return replace(frame, sent=sent)


class _Bits(NamedTuple):
    """What an update that is trained again must be like, as far as is told of it."""

    frame: bytes
    farthest: tuple[str, float]
    size: Size
    reach: Reach

    @classmethod
    def of(cls, update: HeldUpdate) -> "_Bits":
        """Those of an update."""
        return cls(update.frame, update.farthest, update.size, update.reach)
