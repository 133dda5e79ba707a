"""What computes the local training of a simulation's clients, and the trainer that does so as their agents would."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from edge_fl.runtimes.base import Runtime
from edge_fl.training import train
from edge_fl.update import Update, Visit

__all__ = ["RuntimeTrainer", "Trainer"]


class Trainer(ABC):
    """Trains the clients of a round."""

    @abstractmethod
    def updates(self, visits: Iterable[Visit]) -> Iterator[Update]:
        """Train each visit and give its update, in their order; none is begun long before it is trained.

        Raises
        ------
        RunError
            When a loss or a weight is no longer finite.
        RuntimeMissingError
            When the bundle holds no program for a pattern.
        """


class RuntimeTrainer(Trainer):
    """One client after another through a runtime: the bits of a fleet.

    Parameters
    ----------
    runtime
        The one that every client's agent would have.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def updates(self, visits: Iterable[Visit]) -> Iterator[Update]:
        """Train each as its agent would."""
        for visit in visits:
            train(self._runtime, visit.run)
            yield visit.update()
