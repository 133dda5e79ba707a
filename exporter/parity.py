"""The proof that a bundle's programs compute what torch computes: several steps, a new pattern each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.bundle import Bundle, Parity
from edge_fl.errors import ParityError
from edge_fl.layout import Layout
from edge_fl.pattern import Pattern
from edge_fl.randomness import Stream
from edge_fl.runtimes.base import Batch, Runtime, open_runtime
from edge_fl.selection import Selection
from exporter.lower import kept_at
from exporter.reference import Arrays, reference_evaluation, reference_step
from exporter.source import Source

__all__ = ["LIMIT", "check_parity"]

LIMIT = 1e-5
"""The largest difference of any weight, loss or output from torch's that a program may show."""
_LEAST_STEPS = 6
_LR = 0.1
_EVALUATED = 230


@dataclass(frozen=True)
class _Step:
    """One step's pattern, scale, and number of real samples in the batch."""

    pattern: Pattern
    scale: float
    samples: int


def check_parity(source: Source, bundle: Bundle, runtime: str, *, widths: tuple[int, ...], batch: int) -> Parity:
    """Compare the programs of ``runtime`` with torch, at ``widths`` (thousandths), on full and short batches.

    Returns
    -------
    The largest differences seen.

    Raises
    ------
    ParityError
        When one exceeds ``LIMIT``, or an entry that a step's pattern drops has changed at all.
    """
    opened = open_runtime(runtime, bundle)
    weights = {name: array.copy() for name, array in bundle.weights().items()}
    expected = {name: array.copy() for name, array in weights.items()}
    rng = np.random.default_rng(0)
    steps, moved, answered = 0, 0.0, 0.0
    for step in _plan(source.layout, widths, batch, uneven=_any_width(bundle, runtime)):
        data = _batch(source, rng, size=batch, real=step.samples)
        before = {name: array.copy() for name, array in weights.items()}
        loss = _run(opened, weights, step, data)
        expected, true_loss = reference_step(source, expected, step.pattern, data, lr=_LR, scale=step.scale)
        steps += 1
        _require_frozen(before, weights, step.pattern, runtime)
        for name, array in weights.items():
            moved = max(moved, _within(array, expected[name], runtime, f"the weight '{name}'", steps))
        answered = max(answered, _within(loss, true_loss, runtime, "the loss", steps))
    data = _batch(source, rng, size=_EVALUATED, real=_EVALUATED - 1)
    loss, outputs = opened.evaluator()(weights, data)
    true_loss, true_outputs = reference_evaluation(source, weights, data)
    answered = max(answered, _within(outputs, true_outputs, runtime, "an evaluation output", steps))
    answered = max(answered, _within(loss, true_loss, runtime, "the evaluation loss", steps))
    return Parity(steps, moved, answered)


def _within(
    ours: NDArray[np.float32] | float, theirs: NDArray[np.float32] | float, runtime: str, what: str, steps: int
) -> float:
    difference = float(np.max(np.abs(np.subtract(ours, theirs)), initial=0.0))
    if not difference <= LIMIT:  # NaN is no difference that is small
        raise ParityError(
            f"The {runtime} programs do not compute what torch computes: {what} is off by {difference:.2g} after "
            f"{steps} steps (limit {LIMIT:g}), so no bundle was written; a model in which the samples of a batch "
            "influence one another cannot be exported."
        )
    return difference


def _any_width(bundle: Bundle, runtime: str) -> bool:
    return all(program.kept is None for program in bundle.manifest.programs[runtime] if program.kind == "step")


def _plan(layout: Layout, widths: tuple[int, ...], batch: int, *, uneven: bool) -> Iterator[_Step]:
    """Every width at least twice, first unscaled, then scaled (and ``uneven`` across blocks); every other batch
    is short.
    """
    passes = max(2, -(-_LEAST_STEPS // len(widths)))
    for index, width in enumerate(widths * passes):
        again = index >= len(widths)
        counts = kept_at(layout, width)
        if uneven and again:
            counts = {name: max(2, n - i) for i, (name, n) in enumerate(counts.items())}
        short = batch - batch // 3 if index % 2 else batch
        yield _Step(_drawn(layout, counts, index), 1000 / width if again else 1.0, short)


def _drawn(layout: Layout, counts: Mapping[str, int], index: int) -> Pattern:
    stream = Stream.of(seed=0, purpose="parity", index=index)
    mask = np.zeros(layout.units, dtype=np.bool_)
    start = 0
    for block in layout.blocks:
        mask[start + stream.subset(block.size, min(block.size, counts[block.name]))] = True
        start += block.size
    return Pattern(layout, mask)


def _batch(source: Source, rng: np.random.Generator, *, size: int, real: int) -> Batch:
    x = rng.standard_normal((size, *source.input_shape)).astype(np.float32)
    y = rng.integers(0, source.classes, (size, *source.loss.target.shape))
    x[real:], y[real:] = 0, 0
    return Batch(x, y, (np.arange(size) < real).astype(np.float32))


def _run(runtime: Runtime, weights: Arrays, step: _Step, batch: Batch) -> float:
    selection = Selection.of(step.pattern, "units")
    program = runtime.train_step(step.pattern.counts, len(batch.x))
    loss, new = program(selection.gather(weights), batch, lr=_LR, scale=step.scale)
    selection.scatter(new, weights)
    return loss


def _require_frozen(before: Arrays, after: Arrays, pattern: Pattern, runtime: str) -> None:
    rows = Selection.of(pattern, "rows")
    for tensor in pattern.layout.tensors:
        dropped = np.ones(tensor.shape, dtype=np.bool_)
        dropped[rows.index(tensor)] = False
        if not np.array_equal(before[tensor.name][dropped], after[tensor.name][dropped]):
            raise ParityError(
                f"The {runtime} program changed dropped rows of '{tensor.name}'; no bundle was written."
            )
