"""What a device is asked to do with a bundle's programs, a whole task at a time, and doing it in this process."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import Bundle
from edge_fl.core.selection import Weights, masked
from edge_fl.core.server_half import State
from edge_fl.data.fit import fitted, prepared
from edge_fl.data.held_out import Split
from edge_fl.data.registry import Samples
from edge_fl.runtimes.base import Runtime
from edge_fl.training.batch_statistics import make_statistics
from edge_fl.training.evaluation import evaluated
from edge_fl.training.features import with_features
from edge_fl.training.personal import personal_tensors
from edge_fl.training.prediction import full_weights, predicted
from edge_fl.training.rehearsal import rehearse
from edge_fl.training.update import Update, make_update
from edge_fl.wire.downlink import decode_model
from edge_fl.wire.frame import Frame, decode_frame
from edge_fl.wire.messages import CollectStatistics, Evaluate, Evaluated, Task

__all__ = ["Content", "Inputs", "LocalWork", "Work"]


Content = bytes | memoryview
Inputs = NDArray[np.float32] | NDArray[np.int64] | NDArray[np.object_]


class Work(ABC):
    """A bundle, opened.

    A ``model`` is the frame that the task names, as it came, and ``state`` what the device remembers. Every method
    raises EdgeFLError when what is asked cannot be done, and perhaps what the owner's own code raises.

    Attributes
    ----------
    bundle
        What was opened.
    """

    bundle: Bundle

    @abstractmethod
    def hold(self, data: Split) -> None:
        """Take these samples from now on."""

    @abstractmethod
    def train(self, task: Task, model: Content, state: State, secret: bytes | None = None) -> Update:
        """Train on the samples (:func:`edge_fl.training.update.make_update`)."""

    @abstractmethod
    def score(self, task: Evaluate, model: Content, state: State) -> tuple[Evaluated, Mapping[str, float]]:
        """Score the model on the samples that are held out; the answer, and the scores by name."""

    @abstractmethod
    def collect(self, task: CollectStatistics, model: Content, state: State) -> bytes:
        """The frame of collected statistics (:func:`edge_fl.training.batch_statistics.make_statistics`)."""

    @abstractmethod
    def rehearse(self, task: Task) -> float:
        """Seconds that a step takes, more than 0 (:func:`edge_fl.training.rehearsal.rehearse`)."""

    @abstractmethod
    def keep(self, model: Content, state: State) -> None:
        """Predict by this frame from now on; it has been decoded once, without an error."""

    @abstractmethod
    def predict(self, x: Inputs, *, width: int) -> NDArray[np.float32]:
        """Outputs ``[N, ...]`` of the model that is kept (:func:`edge_fl.training.prediction.predicted`)."""

    def close(self) -> None:  # noqa: B027  (in this process there is nothing to end)
        """Nothing more is asked: end what was started."""


class LocalWork(Work):
    """In this process.

    Parameters
    ----------
    client
        The device's id.
    runtime
        The bundle, opened.
    """

    def __init__(self, client: str, runtime: Runtime) -> None:
        self._client, self._runtime, self.bundle = client, runtime, runtime.bundle
        self._data: Split | None = None
        self._made: dict[str, tuple[Samples, Samples]] = {}
        self._kept: Weights | None = None

    def hold(self, data: Split) -> None:
        """Take these samples from now on."""
        self._data = data

    def _model(self, task: Task | Evaluate | CollectStatistics, content: Content) -> Frame:
        trained = task.round if isinstance(task, Task) else task.round + 1
        return decode_model(content, self.bundle.layout, run=task.run, round=trained)

    def _samples(self, part: Literal["train", "test"]) -> Samples:
        """A part of what is held, its features made when it is first asked for."""
        assert self._data is not None, "samples are held before anything is asked"
        given: Samples = getattr(self._data, part)
        if part not in self._made or self._made[part][0] is not given:
            self._made.pop(part, None)  # what was made of other data is not kept beside
            read = fitted(given, self.bundle) if given.are_texts else given
            self._made[part] = given, with_features(read, self._runtime)
        return self._made[part][1]

    def train(self, task: Task, model: Content, state: State, secret: bytes | None = None) -> Update:
        """Train on the samples."""
        return make_update(
            task,
            client=self._client,
            model=self._model(task, model),
            runtime=self._runtime,
            samples=self._samples("train"),
            state=state,
            secret=secret,
        )

    def score(self, task: Evaluate, model: Content, state: State) -> tuple[Evaluated, Mapping[str, float]]:
        """Score the model on the samples that are held out."""
        answer, found = evaluated(
            task,
            model=self._model(task, model),
            runtime=self._runtime,
            samples=self._samples("test"),
            state=state,
        )
        return answer, found.scores

    def collect(self, task: CollectStatistics, model: Content, state: State) -> bytes:
        """The frame of collected statistics."""
        return make_statistics(
            task,
            client=self._client,
            model=self._model(task, model),
            runtime=self._runtime,
            samples=self._samples("train"),
            state=state,
        )

    def rehearse(self, task: Task) -> float:
        """Seconds that a step takes."""
        return rehearse(task, client=self._client, runtime=self._runtime, samples=self._samples("train"))

    def keep(self, model: Content, state: State) -> None:
        """Predict by this frame from now on."""
        frame, own = decode_frame(model, self.bundle.layout), personal_tensors(self.bundle, state)
        whole = {**full_weights(frame), **own}
        self._kept = masked(whole, frame.pattern) if own else whole

    def predict(self, x: Inputs, *, width: int) -> NDArray[np.float32]:
        """Outputs of the model that is kept."""
        assert self._kept is not None, "a model is kept before anything is predicted"
        if x.dtype == object:
            x = prepared(Samples(x, np.zeros(len(x), dtype=np.int64)), self.bundle).x
        return predicted(self._runtime, self._kept, self._runtime.features(x), width=width)
