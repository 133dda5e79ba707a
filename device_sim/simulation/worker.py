"""What trains parts of a round in another process, and adds up what it trained where that is asked."""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from broker.held_update import HeldUpdate, held_update, sum_frame
from device_sim.simulation.buffer_files import BufferFiles, Packed
from device_sim.simulation.trainer import Call, Trainer
from edge_fl.aggregation.exact_sums import Counted, ExactSum, HeldUpdates
from edge_fl.aggregation.spool import Spool
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import RunError
from edge_fl.core.registry import keep_place
from edge_fl.core.server_half import State
from edge_fl.recipes.recipe import open_recipe
from edge_fl.training.update import Update
from edge_fl.wire.frame import decode_frame, frame_header
from edge_fl.wire.sum_frame import SumHeader

__all__ = ["AddUp", "Hold", "Holding", "Job", "Train", "Worker"]


class Train(NamedTuple):
    """Train these clients, and give their updates."""

    calls: list[Call]


class Hold(NamedTuple):
    """Train these clients, part number ``part`` of a round, and hold their updates: a :class:`Holding` each."""

    part: int
    calls: list[Call]


class AddUp(NamedTuple):
    """Add up updates that are held: by part, the number of each that counts, and what it does.

    The sum is given as a frame with this ``header``, but for how many updates it is of, and what they count together.
    """

    header: SumHeader
    parts: Mapping[int, Sequence[tuple[int, Counted]]]


Job = Train | Hold | AddUp


class Holding(NamedTuple):
    """An update that a worker holds, and the ``state`` that its client is left with."""

    update: HeldUpdate
    state: State


class Worker:
    """It lives in a process of its own, and does one job after another.

    Its trainer is opened for the first. The updates that it holds lie in a file of the system's temporary folder. They
    are forgotten when it is asked to hold some of another round.

    Parameters
    ----------
    load
        Gives the bundle.
    open
        Opens the trainer.
    """

    def __init__(self, load: Callable[[], Bundle], open: Callable[[Bundle], Trainer]) -> None:
        self._load, self._open = load, open
        self._bundle: Bundle | None = None
        self._trainer: Trainer | None = None
        self._round = ("", 0)
        self._held: HeldUpdates | None = None  # of that round
        self._first: dict[int, int] = {}  # number of a part's first update among them

    def do(self, job: Job, model: bytes) -> Any:
        """What a job gives, or what it raised, which is the engine's to give on; ``model`` is the round's frame."""
        try:
            match job:
                case Train(calls):
                    return list(self._train(model, calls))
                case Hold(part, calls):
                    return self._hold(model, part, calls)
                case AddUp(header, parts):
                    return self._add_up(header, parts)
        except Exception as error:
            keep_place(error)
            error.add_note(traceback.format_exc())
            return error

    def answer(self, files: BufferFiles, asked: Packed, job: Job, model: bytes) -> Packed:
        """As :meth:`do`, into the file of the message that asked; the error that says so where there is no room."""
        try:
            return files.answer(self.do(job, model), asked)
        except RunError as error:
            return files.answer(error, asked)

    def _train(self, model: bytes, calls: list[Call]) -> Iterator[Update]:
        self._bundle = self._bundle or self._load()
        self._trainer = self._trainer or self._open(self._bundle)
        return self._trainer.updates(model, calls, len(calls))

    def _hold(self, model: bytes, part: int, calls: list[Call]) -> list[Holding]:
        task, updates = calls[0].task, self._train(model, calls)
        assert self._bundle is not None
        layout, recipe = self._bundle.layout, open_recipe(task.method, task.parameters)
        if self._held is None or (task.run, task.round) != self._round:
            self._forget()
            self._round, self._held = (task.run, task.round), HeldUpdates(layout, recipe.rule, Spool(layout, None))
        held, self._first[part] = self._held, len(self._held)
        shared = frame_header(model).shared or b""
        found = []
        for update in updates:
            frame = decode_frame(update.frame, layout, shared, recipe.decoders, travelled=False)
            reach = held.hold(frame.selection, frame.values)
            told = held_update(frame, len(update.frame), layout=layout, reach=reach)
            found.append(Holding(told, update.state))
        return found

    def _add_up(self, header: SumHeader, parts: Mapping[int, Sequence[tuple[int, Counted]]]) -> bytes:
        assert self._bundle is not None
        assert self._held is not None
        layout = self._bundle.layout
        names = (tensor.name for tensor in layout.tensors)
        total = ExactSum(layout, dict(zip(names, header.exponents, strict=True)))
        for part in sorted(parts):
            self._held.add_to(total, ((self._first[part] + number, counted) for number, counted in parts[part]))
        return sum_frame(header, layout, total)

    def _forget(self) -> None:
        if self._held is not None:
            self._held.close()
        self._first.clear()
