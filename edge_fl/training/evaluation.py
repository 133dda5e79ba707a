"""A model's score on samples: what coordinator, devices and simulations compute alike."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import RunError
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Weights, masked
from edge_fl.core.server_half import State
from edge_fl.core.width_factor import with_factor
from edge_fl.data.batcher import eval_batches
from edge_fl.data.registry import Samples
from edge_fl.metrics.base import Metric, Sums, WholeSetMetric, sent_metrics
from edge_fl.runtimes.base import Runtime
from edge_fl.training.personal import personal_tensors
from edge_fl.wire.frame import Frame
from edge_fl.wire.messages import Evaluate, Evaluated

__all__ = ["BATCH", "Score", "evaluated", "score"]

BATCH = 200
"""Samples looked at together where memory does not matter: larger batches fall out of the cache."""

_OUTPUTS = 2**24  # at most so many outputs a batch: 200 sequences over 33,278 words would take 1 GB
_FULL = 1000


@dataclass(frozen=True)
class Score:
    """Mean loss, the scores by name, and the sums that they were made of."""

    loss: float
    scores: Mapping[str, float]
    sums: Mapping[str, Sums]

    @property
    def first(self) -> float:
        """The first of the scores, or the loss where none was wanted."""
        return next(iter(self.scores.values()), self.loss)


@dataclass
class _Seen:
    """What was added up so far; ``outputs`` and ``targets`` are kept where a metric looks at all of them at once."""

    loss: float = 0.0
    sums: dict[str, Sums] = field(default_factory=dict)
    outputs: list[NDArray[Any]] = field(default_factory=list)
    targets: list[NDArray[Any]] = field(default_factory=list)


def evaluated(
    task: Evaluate, *, model: Frame, runtime: Runtime, samples: Samples, state: State
) -> tuple[Evaluated, Score]:
    """A client's answer to ``task``, and the score behind it: that of the full ``model`` on its own ``samples``.

    ``state`` is what the client remembers, its personal tensors among it.

    Raises as :func:`score` does, and ConfigError when a metric is not to be had here.
    """
    metrics = sent_metrics(task.scores, runtime.bundle.manifest)
    weights = {**model.values, **personal_tensors(runtime.bundle, state)}
    found = score(
        runtime,
        weights,
        samples,
        metrics,
        width=task.width,
        statistics=task.statistics,
        factor=task.factor,
        batch=task.batch,
    )
    sums = {name: tuple(values.tolist()) for name, values in found.sums.items()}
    return Evaluated(task.run, task.round, len(samples.y), found.loss, sums), found


def score(
    runtime: Runtime,
    weights: Weights,
    samples: Samples,
    metrics: Sequence[Metric | WholeSetMetric] = (),
    *,
    width: int = 1000,
    statistics: int = 1000,
    factor: float = 1.0,
    batch: int = BATCH,
) -> Score:
    """Run the bundle's evaluation program over ``samples``; each counts alike, and in a sample every position.

    Parameters
    ----------
    weights
        Full tensors by name, personal ones among them.
    metrics
        The scores wanted besides the loss.
    width
        Thousandths: the model is left the first units of each block, as many as this says.
    statistics
        The width, in thousandths, whose statistics BatchNorm normalises by where it has them for each.
    factor
        What multiplies the outputs of every block's layer (:mod:`edge_fl.core.width_factor`).
    batch
        Samples to look at together, at the most; a program for batches of one size has that.

    Raises
    ------
    DataError
        When there are no samples.
    RunError
        When the loss is not finite.
    ConfigError
        When a metric of the user's cannot be computed.
    RuntimeMissingError
        When the bundle holds no evaluation program for the runtime.
    """
    manifest, run = runtime.bundle.manifest, runtime.evaluator()
    kept = weights if width >= _FULL else masked(weights, Pattern.prefix(runtime.bundle.layout, width))
    kept = with_factor(manifest, kept, factor)
    outputs_each = manifest.classes * int(np.prod(manifest.target.shape, dtype=np.int64))
    size = run.batch or min(max(_OUTPUTS // outputs_each, 1), batch, max(len(samples.y), 1))
    adding = [metric for metric in metrics if isinstance(metric, Metric)]
    whole = [metric for metric in metrics if isinstance(metric, WholeSetMetric)]
    seen = _Seen()
    try:
        for each in eval_batches(samples, size=size):
            batch_loss, outputs = run(kept, each, width=statistics)
            seen.loss += batch_loss * float(each.weight.sum())
            for metric in adding:
                sums = metric.sums(outputs, each.y, each.weight)
                seen.sums[metric.name] = seen.sums[metric.name] + sums if metric.name in seen.sums else sums
            if whole:
                real = each.weight > 0
                seen.outputs.append(outputs[real])
                seen.targets.append(each.y[real])
    finally:
        runtime.settle()
    if not math.isfinite(seen.loss):
        raise RunError(f"The model's loss on held-out data is {seen.loss}; lower the step size.")
    scores = {metric.name: metric.value(seen.sums[metric.name]) for metric in adding}
    if whole:
        outputs, targets = np.concatenate(seen.outputs), np.concatenate(seen.targets)
        scores |= {metric.name: metric.of(outputs, targets) for metric in whole}
    ordered = {metric.name: scores[metric.name] for metric in metrics}
    return Score(seen.loss / len(samples.y), ordered, seen.sums)
