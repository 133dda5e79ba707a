"""A round whose updates stay with the workers that trained them, which add them up; sums come back, not updates."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from broker.held_update import HeldUpdate, SumsOfWorkers
from device_sim.simulation.parts import PartsTrainer
from device_sim.simulation.trainer import Call
from device_sim.simulation.worker import Holding
from edge_fl.aggregation.bounds import WHOLE, Clip
from edge_fl.aggregation.exact_sums import Counted, Held
from edge_fl.aggregation.rules import Rule
from edge_fl.core.errors import RunError
from edge_fl.core.layout import Layout
from edge_fl.wire.frame import frame_header
from edge_fl.wire.sum_frame import SumHeader

__all__ = ["HeldRound"]

_log = logging.getLogger(__name__)

_TRIES = 3  # at adding up, between which lost parts are trained again


class HeldRound(SumsOfWorkers):
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
        super().__init__(layout, rule, run=frame_header(model).run, round=number)
        self._trainer, self._model, self._recall = trainer, model, recall
        self._clients: dict[int, list[str]] = {}  # of each part
        self._told: dict[int, list[HeldUpdate]] = {}
        self._places: list[tuple[int, int]] = []  # of the updates that count

    def train(self, calls: Iterable[Call], count: int) -> Iterator[tuple[Holding, Held]]:
        """Have workers do these calls: what is told of each update, and where it is, in their order."""
        for part, clients, updates in self._trainer.hold(self._model, calls, count):
            self._remember(part, clients, updates)
            for number, holding in enumerate(updates):
                yield holding, Held(holding.update.size, holding.update.reach, part, number)

    def _remember(self, part: int, clients: list[str], updates: Sequence[Holding]) -> None:
        """What is asked of a part if its worker is lost."""
        self._clients[part], self._told[part] = clients, [holding.update for holding in updates]

    def add_held(self, held: Held, samples: int, discount: float = 1, *, clip: Clip = WHOLE) -> None:
        """Count an update, as :meth:`edge_fl.aggregation.exact_sums.ExactAccumulator.add` would."""
        self._take(held.reach, samples, discount, clip)
        self._places.append((held.part, held.number))

    def _partial_sums(
        self, header: SumHeader, counted: Sequence[Counted]
    ) -> Iterator[tuple[Sequence[Counted], bytes]]:
        parts: dict[int, list[tuple[int, Counted]]] = {}
        for (part, number), each in zip(self._places, counted, strict=True):
            parts.setdefault(part, []).append((number, each))
        for _ in range(_TRIES):
            sums, lost = self._trainer.add_up(header, parts)
            for some, frame in sums:
                yield [counts for part in some for _, counts in parts[part]], frame
            if not lost:
                return
            parts = self._held_again({part: parts[part] for part in lost})
        raise RunError(
            f"Workers were lost {_TRIES} times before round {self._round} was added up: see that they have memory "
            "enough, and continue the run with --resume."
        )

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
            if self._told[part] != self._told.pop(before):
                raise RunError(
                    f"Round {self._round} came to other bits on another host: train on processors of one kind."
                )
        return again
