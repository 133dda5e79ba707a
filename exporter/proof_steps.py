"""What a proof's steps are given: start weights, patterns, batches, and what kinds of steps take besides."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from edge_fl.core.batch import LEFT_OUT, Batch
from edge_fl.core.bundle import WHOLE_BATCHES
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.core.selection import Index, Selection, Weights
from edge_fl.core.width_statistics import one_hot
from exporter.lower import kept_at
from exporter.named_inputs import named_values
from exporter.source import Source

__all__ = [
    "Planned",
    "kept_outputs",
    "made_up_batch",
    "made_up_extra",
    "made_up_masks",
    "made_up_noise",
    "plan_steps",
    "start_rates",
    "start_weights",
    "step_size",
]

_LEAST_STEPS = 5
_LR = 0.1
_BATCH_NORM_LR = 0.01  # of deep models with BatchNorm even torch's own two precisions part at larger steps
_ADAM_LR = 0.001  # about the length of an entry's move
_BATCH_NORM_ADAM_LR = 0.0003  # smaller still, and a normalised unit's factor of 1 would round the move away
_ABOVE_KINKS = 3.0
_SHARE_LEFT_OUT = 0.25


@dataclass(frozen=True)
class Planned:
    """One step's pattern, scale, number of real samples in the batch, and width (thousandths) of its statistics."""

    pattern: Pattern
    scale: float
    samples: int
    width: int


def start_weights(source: Source, weights: Weights) -> Weights:
    """The weights a proof starts from: none that only begins at zero, and normalised units mostly above it.

    An entry that is zero hides what is done to it. And where a deep network has millions of units about the kink of
    a ReLU, precisions part over one that falls on the other side: torch's own float32 leaves its float64 by 1e-2 of
    a weight within ten steps of ResNet-18, and by 1e-6 from here.
    """
    rng = np.random.default_rng(2)
    normalised = {
        f"{name}.bias"
        for name, module in source.original.named_modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm)
    }
    start = {}
    for tensor in source.layout.tensors:
        array = weights[tensor.name]
        if tensor.name in normalised or not array.any():
            array = (0.1 * rng.standard_normal(array.shape)).astype(np.float32)
            array += _ABOVE_KINKS if tensor.name in normalised else 0
        start[tensor.name] = array
    return start


def step_size(source: Source) -> float:
    """Small enough that two ways of rounding stay together for a proof."""
    if source.optimizer.name == "adam":
        return _ADAM_LR if source.batch_norm == "none" else _BATCH_NORM_ADAM_LR
    return _LR if source.batch_norm == "none" else _BATCH_NORM_LR


def plan_steps(
    source: Source, widths: tuple[int, ...], batch: int, *, draw: int, uneven: bool
) -> Iterator[Planned]:
    """Every width at least twice, first unscaled, then scaled (and ``uneven`` across blocks); every other batch
    is short. Patterns are those of a ``draw``.
    """
    passes = max(2, -(-_LEAST_STEPS // len(widths)))
    for index, width in enumerate(widths * passes):
        again = index >= len(widths)
        counts = kept_at(source.layout, width)
        if uneven and again:
            counts = {name: max(min(2, n), n - i) for i, (name, n) in enumerate(counts.items())}
        short = index % 2 and source.batch_norm not in WHOLE_BATCHES
        yield Planned(
            _drawn(source.layout, counts, draw, index),
            1000 / width if again else 1.0,
            batch - batch // 3 if short else batch,
            width,
        )


def _drawn(layout: Layout, counts: Mapping[str, int], draw: int, index: int) -> Pattern:
    stream = Stream.of(seed=draw, purpose="parity", index=index)
    mask = np.zeros(layout.units, dtype=np.bool_)
    start = 0
    for block in layout.blocks:
        mask[start + stream.subset(block.size, min(block.size, counts[block.name]))] = True
        start += block.size
    return Pattern(layout, mask)


def made_up_batch(source: Source, rng: np.random.Generator, *, size: int, real: int) -> Batch:
    """``size`` random samples, of which those from ``real`` on are padding."""
    x = (
        named_values(source.inputs, size, rng)
        if source.inputs
        else _values(source.input, rng, size, source.classes)
    )
    y = _values(source.target, rng, size, source.classes)
    if source.loss.leaves_out and source.target.shape:
        y[rng.random(y.shape) < _SHARE_LEFT_OUT] = LEFT_OUT
    x[real:], y[real:] = x[0], y[0]
    return Batch(x, y, (np.arange(size) < real).astype(np.float32))


def _values(what: Input, rng: np.random.Generator, size: int, classes: int) -> NDArray[Any]:
    shape = (size, *what.shape)
    if what.dtype == "int64":
        return rng.integers(0, classes, shape)
    return rng.standard_normal(shape).astype(np.float32)


def made_up_extra(
    source: Source, variant: str, rng: np.random.Generator, pattern: Pattern, batch: Batch
) -> dict[str, NDArray[Any]]:
    """Full-size arrays for what a variant and a loss take besides."""
    extra: dict[str, NDArray[Any]] = {}
    for name in source.loss.inputs:
        mask = np.ones(source.classes, dtype=np.float32)
        mask[np.setdiff1d(np.arange(source.classes), batch.y)[:1]] = 0
        extra[name] = mask
    if variant == "noise":
        for tensor in source.layout.parameters:
            extra[f"noise.{tensor.name}"] = (0.01 * rng.standard_normal(tensor.shape)).astype(np.float32)
    if variant == "distil":
        for block in source.layout.blocks:
            student = np.zeros(block.size, dtype=np.float32)
            kept = pattern.kept[block.name]
            student[kept[: max(1, len(kept) // 2)]] = 1
            extra[f"student.{block.name}"] = student
        if source.statistic_widths:
            extra["student_width"] = one_hot(source.statistic_widths, min(source.statistic_widths))
        forward = rng.integers(0, 2)
        for name, value in (("alpha", 0.75), ("temperature", 2.0), ("forward", forward)):
            extra[name] = np.array(value, dtype=np.float32)
    return extra


def start_rates(source: Source, noisy: tuple[Tensor, ...]) -> dict[str, NDArray[np.float32]]:
    """The full ``log_alpha.NAME`` that variational dropout starts from: rates from next to nothing to above 1/2."""
    rng = np.random.default_rng(3)
    shapes = {outputs.name: source.layout.tensor(outputs.name).shape for outputs in noisy}
    return {f"log_alpha.{name}": rng.uniform(-4, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def made_up_noise(
    noisy: tuple[Tensor, ...], rng: np.random.Generator, pattern: Pattern, batch: int
) -> dict[str, NDArray[np.float32]]:
    """Full-size ``output_noise.NAME``, 0 where ``pattern`` drops a unit, and the weight ``kl`` of the divergence."""
    extra: dict[str, NDArray[np.float32]] = {"kl": np.array(0.1, dtype=np.float32)} if noisy else {}
    for outputs in noisy:
        at = kept_outputs(outputs, pattern)
        noise = np.zeros((batch, *outputs.shape), dtype=np.float32)
        noise[at] = rng.standard_normal(noise[at].shape)
        extra[f"output_noise.{outputs.name}"] = noise
    return extra


def made_up_masks(source: Source, rng: np.random.Generator, batch: int) -> dict[str, NDArray[np.float32]]:
    """Full-size ``dropout.NAME`` of every place where the model drops."""
    masks = {}
    for place in source.dropped:
        kept = rng.random((batch, *place.mask.shape)) >= place.p
        masks[place.input] = (kept / (1 - place.p)).astype(np.float32)
    return masks


def kept_outputs(outputs: Tensor, pattern: Pattern) -> Index:
    """Where the outputs ``[B, ...]`` of kept units are."""
    layout = Layout(pattern.layout.blocks, (outputs,))
    return (slice(None), *Selection.of(Pattern(layout, pattern.mask), "units").index(outputs))
