"""What computes the local training of a simulation's clients, and the trainer that does so as their agents would."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edge_fl.core.bundle import Bundle
from edge_fl.core.server_half import State
from edge_fl.data.registry import Samples
from edge_fl.runtimes.base import Runtime
from edge_fl.training.local_run import train
from edge_fl.training.update import Update, Visit
from edge_fl.wire.frame import Frame, decode_frame
from edge_fl.wire.messages import Task

__all__ = ["STACKED_RUNTIME", "Call", "LocalTrainer", "RuntimeTrainer", "Trainer", "power_of_two"]


STACKED_RUNTIME = "torch_eager"
"""The runtime whose programs the stacked trainer runs."""


@dataclass(frozen=True)
class Call:
    """What one client is asked and what it has; with the round's model, all that its update depends on."""

    task: Task
    client: str
    samples: Samples
    state: State


class Trainer(ABC):
    """Trains the clients of a round.

    Attributes
    ----------
    remote
        Whether updates may come from other machines.
    """

    remote = False

    @abstractmethod
    def updates(self, model: bytes, calls: Iterable[Call], count: int) -> Iterator[Update]:
        """Do each of the ``count`` calls on a model frame, and give the updates in their order.

        None is asked for long before it is trained, for each holds its client's samples.

        Raises
        ------
        RunError
            When a loss or a weight is no longer finite.
        RuntimeMissingError
            When the bundle holds no program for a pattern.
        """

    def close(self) -> None:  # noqa: B027  (most hold nothing)
        """Leave nothing behind; nothing is trained after that."""


class LocalTrainer(Trainer):
    """One that trains in this process.

    Parameters
    ----------
    bundle
        What is trained.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._model: tuple[bytes, Frame] | None = None  # the last one, and what it says

    def updates(self, model: bytes, calls: Iterable[Call], count: int) -> Iterator[Update]:
        """Have them trained as visits."""
        del count
        frame = self._decoded(model)
        return self._trained(
            Visit(
                call.task,
                client=call.client,
                bundle=self._bundle,
                model=frame,
                samples=call.samples,
                state=call.state,
                secret=f"simulated|{call.task.seed}".encode(),  # the same seed gives the same noise
            )
            for call in calls
        )

    def _decoded(self, model: bytes) -> Frame:
        """Once a round, of which a worker trains many parts."""
        if self._model is None or self._model[0] != model:
            self._model = model, decode_frame(model, self._bundle.layout)
        return self._model[1]

    @abstractmethod
    def _trained(self, visits: Iterable[Visit]) -> Iterator[Update]:
        """Make every step of each visit, and give its update, in their order."""


class RuntimeTrainer(LocalTrainer):
    """One client after another through a runtime: the bits of a fleet.

    Parameters
    ----------
    runtime
        The one that every client's agent would have.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.bundle)
        self._runtime = runtime

    def _trained(self, visits: Iterable[Visit]) -> Iterator[Update]:
        for visit in visits:
            train(self._runtime, visit.run)
            yield visit.update()


def power_of_two(most: int) -> int:
    """The largest up to ``most``: as many clients as are stacked, or sent to a process, at a time."""
    return 1 << (most.bit_length() - 1)
