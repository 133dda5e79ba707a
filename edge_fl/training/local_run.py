"""One client's local training, apart from how a step is computed: what agents and every simulated trainer share.

A :class:`LocalRun` decides and remembers (batches, patterns, losses, what is uploaded); whoever drives it computes the
steps. :func:`train` drives one in a runtime, as a device does; ``device_sim`` drives many at once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import LABEL_MASK
from edge_fl.core.divergence import LEAST_MAX_CHANGE, farthest, max_change
from edge_fl.core.dropout import Dropout, drawn_masks
from edge_fl.core.errors import RunError
from edge_fl.core.pattern import Pattern, draw_seeded
from edge_fl.core.randomness import Stream, draw_ahead, stream_key
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.server_half import State
from edge_fl.core.width_statistics import width_of
from edge_fl.data.batcher import BatchRows, batch_rows
from edge_fl.data.registry import Samples
from edge_fl.methods.base import Job, LocalHalf, LocalStep, Method
from edge_fl.methods.capabilities import MasksLabels, SelectsEntries, TrainsSlots
from edge_fl.runtimes.base import Runtime
from edge_fl.training.local_model import LocalModel
from edge_fl.training.personal import personal_state

__all__ = ["LocalResult", "LocalRun", "LocalSettings", "StepInputs", "draw_first", "train"]


_T = TypeVar("_T")


@dataclass(frozen=True)
class LocalSettings:
    """Local steps a round (V), samples a batch, and SGD's step size (eta); ``whole`` batches have no padding."""

    steps: int
    batch: int
    lr: float
    whole: bool = False


@dataclass(frozen=True)
class LocalResult:
    """What a round of local training gave.

    ``delta`` holds differences to the weights that training started from: the entries that ``pattern`` keeps in the
    method's mode, to be uploaded. ``sent`` (``SelectsEntries.sent``, full-size) says which of them, where that is not
    all. ``loss`` is the mean over the steps; ``state`` replaces the method's state once accepted, and has the personal
    tensors.
    """

    pattern: Pattern
    delta: dict[str, NDArray[np.float32]]
    loss: float
    samples: int
    state: State
    sent: Mapping[str, NDArray[np.bool_]]


@dataclass(frozen=True)
class StepInputs:
    """What one step takes besides tensors and step size: ``number`` counts from 1, ``extra`` is by input name.

    ``drawn`` are those of the run's samples that the step trains on. ``width`` (thousandths) is that of the BatchNorm
    statistics which the step brings up to date.
    """

    drawn: BatchRows
    scale: float
    number: int
    width: int
    extra: Mapping[str, NDArray[Any]]


class LocalRun:
    """A round of local training of one client, step by step.

    Each of ``settings.steps`` times, a trainer takes the entries that the pattern of ``step`` keeps of ``full``, asks
    for :meth:`inputs`, computes the step and tells its loss to :meth:`stepped`. It may keep the entries for as long as
    ``step`` is equal, and puts them back before it takes others, and before :meth:`result`. What is put back stays as
    it is until then: it is not copied.

    Rows that a method leaves behind in mid-round keep what they learned locally (FedBIAD eq. (7)), but only the
    rows of the last pattern are uploaded.

    ``personal`` are the tensors that the client alone has, by name; ``dropout`` says where the model itself drops.

    Attributes
    ----------
    full
        The client's own full tensors.
    samples
        What the client trains on.
    order
        Draws the order in which it does.
    """

    def __init__(
        self,
        *,
        method: Method,
        job: Job,
        samples: Samples,
        settings: LocalSettings,
        personal: Weights,
        dropout: tuple[Dropout, ...] = (),
    ) -> None:
        self.settings, self._variant, self._mode = settings, method.variant, method.mode
        self._dropout = dropout
        self._job, self.samples = job, samples
        self._local = _required(method.local(job), LocalHalf, f"What local() of '{method.name}' returns")
        slots = self._local.slots if isinstance(self._local, TrainsSlots) else None
        self._start = {**job.weights, **personal}
        self.full = LocalModel(self._start, slots)
        self._losses: list[float] = []
        self._labels = _label_input(job.label_mask, masked=isinstance(method, MasksLabels) and method.masks_labels)
        self.order = Stream.of(seed=job.seed, purpose="batches", client=job.client, round=job.round)
        self._batches = batch_rows(
            samples, steps=settings.steps, size=settings.batch, stream=self.order, whole=settings.whole
        )

    @property
    def step(self) -> LocalStep:
        """What to train next."""
        step = _required(self._local.step, LocalStep, "The 'step' of a LocalHalf")
        _required(step.pattern, Pattern, "The first argument of LocalStep")
        return step

    @property
    def variant(self) -> str:
        """The train-step program of the next step."""
        return self.step.variant or self._variant

    def inputs(self, selection: Selection) -> StepInputs:
        """The next step's inputs; ``selection`` is what it takes (:meth:`Selection.of_trained`)."""
        number, step = len(self._losses), self.step
        extra = {**self._labels, **self._masks(step.pattern, number), **self._local.extra(selection, number)}
        width = width_of(step.pattern) if step.width is None else step.width
        return StepInputs(next(self._batches), step.scale, number + 1, width, extra)

    def _masks(self, pattern: Pattern, number: int) -> dict[str, NDArray[np.float32]]:
        """Those of the model's own dropout."""
        if not self._dropout:
            return {}
        job = self._job
        key = stream_key(seed=job.seed, purpose="dropout", client=job.client, round=job.round, index=number)
        return drawn_masks(self._dropout, pattern, batch=self.settings.batch, key=key)

    def stepped(self, loss: float) -> None:
        """Take note of the loss of the step just made; raises RunError when it is not finite."""
        number = len(self._losses)
        if not math.isfinite(loss):
            raise RunError(
                f"The loss of client '{self._job.client}' is {loss} at step {number + 1}; lower the step size."
            )
        self._losses.append(loss)
        self._local.after_step(number, loss)

    def result(self) -> LocalResult:
        """What was learned, once; raises RunError when a weight is no longer finite, or has gone too far."""
        layout, local = self._job.layout.trained, self._local
        own = personal_state(self._job.layout, self.full.weights) if self._job.layout.personal else {}
        change = self.full.take_change(Selection.of(local.upload, self._mode))
        name, size = farthest(layout, change.trained)
        statistics = (change.trained[tensor.name] for tensor in layout.statistics)
        if not math.isfinite(size) or not all(np.isfinite(each).all() for each in statistics):
            raise RunError(
                f"The weights of client '{self._job.client}' are no longer finite; lower the step size."
            )
        if size > LEAST_MAX_CHANGE and size > max_change(layout, self._start):  # which reads all of the model
            raise RunError(
                f"The training of client '{self._job.client}' changed '{name}' by {size:.1e}; lower the step size."
            )
        if isinstance(local, TrainsSlots):
            local.trained(self.full.slots)
        sent = local.sent if isinstance(local, SelectsEntries) else {}
        loss, state = float(np.mean(self._losses)), {**local.state(), **own}
        return LocalResult(local.upload, change.uploaded, loss, len(self.samples.y), state, sent)


def draw_first(runs: Sequence[LocalRun]) -> None:
    """Draw together what each of ``runs``, of which none made a step yet, would draw by itself at its first one."""
    draw_ahead(run.order for run in runs)
    draw_seeded(run.step.pattern for run in runs)


def train(runtime: Runtime, run: LocalRun) -> None:
    """Make every step of ``run`` in ``runtime``.

    Raises
    ------
    RunError
        When the loss is no longer finite.
    RuntimeMissingError
        When the bundle holds no program for a pattern.
    """
    compact = _Compact(runtime, run)
    try:
        for _ in range(run.settings.steps):
            compact.step()
            if run.step != compact.trained:
                compact.put_back()
                compact = _Compact(runtime, run)
        compact.put_back()
    finally:
        runtime.settle()


class _Compact:
    """The kept entries of one kind of step, and the program that trains them."""

    def __init__(self, runtime: Runtime, run: LocalRun) -> None:
        self._run, self.trained, pattern = run, run.step, run.step.pattern
        self._selection = Selection.of_trained(pattern)
        self._kept = self._selection.gather(run.full.current)
        self._program = runtime.train_step(pattern, run.settings.batch, run.variant)
        self._slots = run.full.gather_slots(self._selection, self._program.fresh_slots(self._kept))

    def step(self) -> None:
        inputs = self._run.inputs(self._selection)
        done = self._program(
            self._kept,
            inputs.drawn.of(self._run.samples),
            lr=self._run.settings.lr,
            scale=inputs.scale,
            slots=self._slots,
            number=inputs.number,
            width=inputs.width,
            extra=inputs.extra,
        )
        self._kept, self._slots = done.tensors, done.slots
        self._run.stepped(done.loss)

    def put_back(self) -> None:
        self._run.full.put_back(self._selection, self._kept, self._slots)


def _required(given: object, kind: type[_T], what: str) -> _T:
    """``given``, which the method's own code made; raises RunError where it is of another kind."""
    if not isinstance(given, kind):
        raise RunError(f"{what} is a {kind.__name__}, not {type(given).__name__}.")
    return given


def _label_input(mask: NDArray[np.float32] | None, *, masked: bool) -> dict[str, NDArray[np.float32]]:
    if mask is None:
        return {}
    return {LABEL_MASK: mask if masked else np.ones_like(mask)}
