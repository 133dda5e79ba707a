"""A trainer whose clients are trained in parts, by the workers of an engine: processes here, or Ray's actors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from device_sim.simulation.trainer import Call, Trainer
from device_sim.simulation.worker import AddUp, Hold, Holding, Job, Train
from edge_fl.aggregation.exact_sums import Counted
from edge_fl.training.update import Update
from edge_fl.wire.sum_frame import SumHeader

__all__ = ["PARTS_AT_ONCE", "Engine", "PartsTrainer", "by_holder"]

Holder = TypeVar("Holder")

PARTS_AT_ONCE = 2
"""Parts that a worker has: one that it trains, and the next, so that it never waits for this process."""

_AHEAD = PARTS_AT_ONCE + 1  # parts a worker that are begun, or whose updates wait to be taken


class Engine(ABC):
    """Workers that train parts of a round's clients, each one after another.

    Attributes
    ----------
    remote
        Whether workers may be on other machines.
    """

    remote = False

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many there are now."""

    @property
    @abstractmethod
    def room(self) -> int:
        """How many parts could be begun now; each worker has up to ``PARTS_AT_ONCE``."""

    @abstractmethod
    def part_sizes(self, count: int) -> Iterator[int]:
        """How many clients of a round of ``count`` each part has, powers of two, and so on without end.

        They depend on nothing that a resumed run may change.
        """

    @abstractmethod
    def share(self, model: bytes) -> Any:
        """What :meth:`begin` takes for the frame of a round's model."""

    @abstractmethod
    def begin(self, number: int, model: Any, job: Train | Hold) -> None:
        """Have a worker with room train a part, known by its number; RunError where it cannot."""

    @abstractmethod
    def finished(self) -> list[tuple[int, Any]]:
        """Wait until something happens: of parts that are done, the number, and what training gave or raised.

        Raises RunError where nobody is left to train a part that was begun.
        """

    @abstractmethod
    def do_where_held(
        self, jobs: Callable[[Sequence[int]], Job], parts: Sequence[int]
    ) -> tuple[list[tuple[list[int], Any]], list[int]]:
        """Have each worker that holds some of these parts do the job made for them, while nobody trains.

        Of each worker its parts, and what it gave or raised; and the parts whose worker is lost.
        """

    @abstractmethod
    def close(self) -> None:
        """End the workers, whatever they do."""


class PartsTrainer(Trainer):
    """Shares out the clients of a round, in parts that depend on nothing but how many there are and the engine.

    A trainer that trains several clients at once sees those of one part alone, so results depend on the size of parts,
    by rounding; with one that trains one after another they are the same bits.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self.remote = engine, engine.remote
        self._begun = 0

    def updates(self, model: bytes, calls: Iterable[Call], count: int) -> Iterator[Update]:
        """Have parts of the calls done, a few ahead of the one whose updates are taken; RunError without a worker."""
        parts = _cut(calls, self._engine.part_sizes(count))
        for _, _, updates in self._done(model, parts, lambda _number, part: Train(part)):
            yield from updates

    def hold(
        self, model: bytes, calls: Iterable[Call], count: int
    ) -> Iterator[tuple[int, list[str], list[Holding]]]:
        """As :meth:`updates`, of updates that workers hold: each part's number, its clients, and what is told of their
        updates.
        """
        return self._done(model, _cut(calls, self._engine.part_sizes(count)), Hold)

    def hold_again(
        self, model: bytes, parts: Iterable[list[Call]]
    ) -> Iterator[tuple[int, list[str], list[Holding]]]:
        """As :meth:`hold`, of parts that were lost with the workers that held them."""
        return self._done(model, iter(parts), Hold)

    def add_up(
        self, header: SumHeader, parts: Mapping[int, Sequence[tuple[int, Counted]]]
    ) -> tuple[list[tuple[list[int], bytes]], list[int]]:
        """Have workers add up what they hold (:class:`AddUp`).

        Of each worker its parts, and their sum as a frame; and the parts whose worker is lost.
        """
        answers, lost = self._engine.do_where_held(
            lambda some: AddUp(header, {part: parts[part] for part in some}), list(parts)
        )
        return [(some, _given(answer)) for some, answer in answers], lost

    def _done(
        self, model: bytes, parts: Iterator[list[Call]], job: Callable[[int, list[Call]], Train | Hold]
    ) -> Iterator[tuple[int, list[str], list[Any]]]:
        """Parts in their order, with the ids of their clients.

        What is not taken of an earlier round's is forgotten when it comes, as its numbers are lower.
        """
        engine = self._engine
        shared = engine.share(model)
        done: dict[int, list[Any]] = {}
        clients: dict[int, list[str]] = {}
        first = taken = self._begun
        while True:
            while engine.room and self._begun - taken < _AHEAD * engine.workers:
                if not (part := next(parts, [])):
                    break
                engine.begin(self._begun, shared, job(self._begun, part))
                clients[self._begun] = [call.client for call in part]
                self._begun += 1
            if taken in done:
                yield taken, clients.pop(taken), done.pop(taken)
                taken += 1
            elif engine.room and taken == self._begun:
                return
            else:
                for number, answer in engine.finished():
                    if number >= first:
                        done[number] = _given(answer)

    def close(self) -> None:
        """End the engine's workers."""
        self._engine.close()


def by_holder(holders: Mapping[int, Holder], parts: Sequence[int]) -> dict[Holder, list[int]]:
    """The parts of each worker that holds some, where ``holders`` says who holds a part."""
    shares: dict[Holder, list[int]] = {}
    for part in parts:
        shares.setdefault(holders[part], []).append(part)
    return shares


def _cut(calls: Iterable[Call], sizes: Iterator[int]) -> Iterator[list[Call]]:
    """Parts of so many calls each."""
    waiting = iter(calls)
    while part := list(islice(waiting, next(sizes))):
        yield part


def _given(answer: Any) -> Any:
    """What a worker gave; raises what it raised."""
    if isinstance(answer, Exception):
        raise answer
    return answer
