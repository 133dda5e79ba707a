"""One client's local training: the loop that real agents and the simulator's runtime trainer share."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.bundle import WHOLE_BATCHES
from edge_fl.data.batcher import batches
from edge_fl.data.registry import Samples
from edge_fl.errors import RunError
from edge_fl.local_model import LocalModel
from edge_fl.methods.base import Job, LocalHalf, Method, State
from edge_fl.pattern import Pattern
from edge_fl.randomness import Stream
from edge_fl.runtimes.base import Batch, Runtime
from edge_fl.selection import Selection, Weights
from edge_fl.width_statistics import width_of

__all__ = ["LocalResult", "LocalSettings", "train_locally"]


@dataclass(frozen=True)
class LocalSettings:
    """Local steps a round (V), samples a batch, and SGD's step size (eta)."""

    steps: int
    batch: int
    lr: float


@dataclass(frozen=True)
class LocalResult:
    """What a round of local training gave.

    ``delta`` holds full-size differences to the weights training started from; ``pattern`` says which of them
    to upload; ``loss`` is the mean over the steps; ``state`` replaces the method's state once accepted.
    """

    pattern: Pattern
    delta: dict[str, NDArray[np.float32]]
    loss: float
    samples: int
    state: State


def train_locally(
    *, runtime: Runtime, method: Method, job: Job, samples: Samples, settings: LocalSettings
) -> LocalResult:
    """Train the job's weights on ``samples`` with the rows ``method`` keeps.

    Rows that a method leaves behind in mid-round keep what they learned locally (FedBIAD eq. (7)), but only the
    rows of the last pattern are uploaded.

    Raises
    ------
    RunError
        When the loss or a weight is no longer finite.
    """
    local = method.local(job)
    full = LocalModel(job.weights)
    stream = Stream.of(seed=job.seed, purpose="batches", client=job.client, round=job.round)
    losses = []
    compact = _Compact(runtime, method.variant, local.pattern, settings, full)
    whole = runtime.bundle.manifest.batch_norm in WHOLE_BATCHES
    drawn = batches(samples, steps=settings.steps, size=settings.batch, stream=stream, whole=whole)
    for step, batch in enumerate(drawn):
        loss = compact.step(batch, local, job, step)
        if not np.isfinite(loss):
            raise RunError(f"The loss of client '{job.client}' is {loss} at step {step + 1}; lower the step size.")
        losses.append(loss)
        local.after_step(step, loss)
        if local.pattern is not compact.pattern:
            compact.put_back(full)
            compact = _Compact(runtime, method.variant, local.pattern, settings, full)
    compact.put_back(full)
    delta = {name: tensor - job.weights[name] for name, tensor in full.weights.items()}
    if not all(np.isfinite(difference).all() for difference in delta.values()):
        raise RunError(f"The weights of client '{job.client}' are no longer finite; lower the step size.")
    return LocalResult(local.upload, delta, float(np.mean(losses)), len(samples.y), local.state())


class _Compact:
    """The kept entries under one pattern, and the program that trains them."""

    def __init__(
        self, runtime: Runtime, variant: str, pattern: Pattern, settings: LocalSettings, full: LocalModel
    ) -> None:
        self.pattern = pattern
        self._selection = Selection.of(pattern, "units")
        self._kept = self._selection.gather(full.weights)
        self._run = runtime.train_step(pattern.counts, settings.batch, variant)
        self._slots = full.gather_slots(self._selection, self._run.fresh_slots(self._kept))
        self._lr = settings.lr

    def step(self, batch: Batch, local: LocalHalf, job: Job, step: int) -> float:
        noise = _noise(self._kept, local.variance, job, step) if local.variance else None
        done = self._run(
            self._kept,
            batch,
            lr=self._lr,
            scale=local.scale,
            slots=self._slots,
            number=step + 1,
            width=width_of(self.pattern),
            extra=noise,
        )
        self._kept, self._slots = done.tensors, done.slots
        return done.loss

    def put_back(self, full: LocalModel) -> None:
        full.put_back(self._selection, self._kept, self._slots)


def _noise(kept: Weights, variance: float, job: Job, step: int) -> dict[str, NDArray[np.float32]]:
    """FedBIAD lines 16 and 17: the gradient at theta ~ N(U, s2 I) moves U."""
    stream = Stream.of(seed=job.seed, purpose="weights", client=job.client, round=job.round, index=step)
    spread = np.sqrt(variance)
    return {
        f"noise.{name}": (spread * stream.normal(mean.size)).astype(np.float32).reshape(mean.shape)
        for name, mean in kept.items()
    }
