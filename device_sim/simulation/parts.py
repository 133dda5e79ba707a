"""A trainer whose clients are trained in parts, by the workers of an engine: processes here, or Ray's actors."""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, cast

from device_sim.simulation.trainer import Call, Trainer
from edge_fl.core.bundle import Bundle
from edge_fl.training.update import Update

__all__ = ["Engine", "PartsTrainer", "Worker"]

_AHEAD = 2  # parts a worker that are trained, or whose updates wait to be taken


class Engine(ABC):
    """Workers that train parts of a round's clients, each one part at a time."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many there are now."""

    @property
    @abstractmethod
    def idle(self) -> int:
        """How many of them could begin a part."""

    @abstractmethod
    def part_size(self, count: int) -> int:
        """How many clients of a round of ``count`` are a part; depends on nothing that a resumed run may change."""

    @abstractmethod
    def share(self, model: bytes) -> Any:
        """What :meth:`begin` takes for the frame of a round's model."""

    @abstractmethod
    def begin(self, number: int, model: Any, part: list[Call]) -> None:
        """Have an idle worker train a part, known by its number; RunError where it cannot."""

    @abstractmethod
    def finished(self) -> list[tuple[int, Any]]:
        """Wait until something happens: of parts that are done, the number, and updates or what training raised.

        Raises RunError where nobody is left to train a part that was begun.
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
        self._engine = engine
        self._begun = 0

    def updates(self, model: bytes, calls: Iterable[Call], count: int) -> Iterator[Update]:
        """Have parts of the calls done, a few ahead of the one whose updates are taken; RunError without a worker.

        What is not taken of an earlier round's is forgotten when it comes, as its numbers are lower.
        """
        engine, waiting = self._engine, iter(calls)
        size, shared = engine.part_size(count), engine.share(model)
        done: dict[int, list[Update]] = {}
        first = taken = self._begun
        while True:
            while engine.idle and self._begun - taken < _AHEAD * engine.workers:
                if not (part := list(islice(waiting, size))):
                    break
                engine.begin(self._begun, shared, part)
                self._begun += 1
            if taken in done:
                yield from done.pop(taken)
                taken += 1
            elif engine.idle and taken == self._begun:
                return
            else:
                for number, answer in engine.finished():
                    if number >= first:
                        done[number] = _updates(answer)

    def close(self) -> None:
        """End the engine's workers."""
        self._engine.close()


class Worker:
    """What a worker does: its trainer is opened for its first part, and then trains one part after another."""

    def __init__(self, load: Callable[[], Bundle], open: Callable[[Bundle], Trainer]) -> None:
        self._load, self._open = load, open
        self._trainer: Trainer | None = None

    def train(self, model: bytes, part: list[Call]) -> list[Update] | Exception:
        """The part's updates, or what training raised, which is the engine's to give on."""
        try:
            self._trainer = self._trainer or self._open(self._load())
            return list(self._trainer.updates(model, part, len(part)))
        except Exception as error:
            error.add_note(traceback.format_exc())
            return error


def _updates(answer: Any) -> list[Update]:
    """Those that were answered; raises what training raised."""
    if isinstance(answer, Exception):
        raise answer
    return cast("list[Update]", answer)
