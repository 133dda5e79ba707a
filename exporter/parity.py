"""The proof that a bundle's programs compute what torch computes: several steps, a new pattern each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edge_fl.bundle import WHOLE_BATCHES, Bundle, Input, Parity
from edge_fl.errors import ParityError
from edge_fl.layout import Layout, Tensor
from edge_fl.local_model import LocalModel
from edge_fl.pattern import Pattern
from edge_fl.randomness import Stream
from edge_fl.runtimes.base import Batch, Runtime, open_runtime
from edge_fl.selection import Index, Selection, Weights
from edge_fl.width_statistics import one_hot
from exporter.lower import kept_at, program_widths
from exporter.reference import Given, Reference
from exporter.source import Source

__all__ = ["ADAM_LIMIT", "LIMIT", "check_parity"]

LIMIT = 1e-4
"""The largest difference of any weight, loss or output that a program may show, over the largest one of its tensor."""
ADAM_LIMIT = 1e-3
"""The same for Adam's weights, as ``|difference| / |update|`` (2-norms): Adam divides by what may be nearly 0.

Also for the logarithms of variational dropout, whose size says nothing of how far they have moved.
"""
_LEAST_STEPS = 5
_LR = 0.1
_BATCH_NORM_LR = 0.01  # of deep models with BatchNorm even torch's own two precisions part at larger steps
_ADAM_LR = 0.001
_EVALUATED = 230
_SMALLEST = 1e-3  # tensors that hardly move from zero are compared with this
_ABOVE_KINKS = 3.0
_MORE_THAN_ROUNDING = 4.0  # times what torch's float32 differs by: two ways of rounding are not equally unlucky
_WIDEST = 50.0  # times a limit: under Adam a wrong gradient is wrong by about as much as the update is long


@dataclass(frozen=True)
class _Step:
    """One step's pattern, scale, number of real samples in the batch, and width (thousandths) of its statistics."""

    pattern: Pattern
    scale: float
    samples: int
    width: int


def check_parity(source: Source, bundle: Bundle, runtime: str, *, widths: tuple[int, ...], batch: int) -> Parity:
    """Compare the programs of ``runtime`` with torch in double precision, at ``widths`` (thousandths).

    Batches are full and short, short ones only where BatchNorm does not make the samples depend on one another. Where
    torch's own float32 is further from its double precision than the limits, those are widened in proportion: in deep
    networks, and under Adam, rounding grows from step to step.

    Returns
    -------
    The largest differences seen, relative as :data:`LIMIT` and :data:`ADAM_LIMIT` say.

    Raises
    ------
    ParityError
        When one exceeds its limit, or an entry that a step's pattern drops has changed at all.
    """
    opened = open_runtime(runtime, bundle)
    if not _any_width(bundle, runtime):
        widths = program_widths(source.layout, widths)
    variants = {program.variant for program in bundle.manifest.programs[runtime] if program.kind == "step"}
    found = [_proven(source, opened, variant, widths, batch) for variant in sorted(variants)]
    answered = _evaluated(source, opened)
    return Parity(
        steps=max(proof.steps for proof in found),
        weights=max(proof.weights for proof in found),
        outputs=max(answered, *(proof.outputs for proof in found)),
    )


def _proven(source: Source, runtime: Runtime, variant: str, widths: tuple[int, ...], batch: int) -> Parity:
    """The proof within the limits, or where torch's float32 strays as far, within what it keeps."""
    proof = _Proof(source, runtime, variant, widths, batch)
    try:
        return proof.run(proof.programs(), _Limits(runtime.name))
    except ParityError:
        rounding = _Rounding(runtime.name)
        proof.run(proof.single_precision(), rounding)
        widened = rounding.widened()
        if not widened:
            raise
        return proof.run(proof.programs(), _Limits(runtime.name, widened))


class _Trained(Protocol):
    """A model in training: its full tensors, and a step, which gives the loss."""

    @property
    def tensors(self) -> Weights: ...

    def step(self, given: Given) -> float: ...


@dataclass(frozen=True)
class _Proof:
    """Steps of one variant, each compared with torch's in double precision."""

    source: Source
    runtime: Runtime
    variant: str
    widths: tuple[int, ...]
    batch: int

    @property
    def start(self) -> Weights:
        return _start(self.source, self.runtime.bundle.weights())

    @property
    def noisy(self) -> tuple[Tensor, ...]:
        return self.runtime.bundle.manifest.output_noise if self.variant == "vardrop" else ()

    @property
    def rates(self) -> Weights:
        return _rates(self.source, self.noisy)

    def programs(self) -> "_Programs":
        """What the runtime makes of the model."""
        return _Programs(self.source, self.runtime, LocalModel(self.start, self.rates))

    def single_precision(self) -> Reference:
        """What torch makes of it in float32."""
        return Reference(self.source, self.start, self.rates, dtype=torch.float32)

    def run(self, trained: _Trained, limits: "_Limits") -> Parity:
        """Compare after every step; raises ParityError when a difference is beyond ``limits``."""
        source, name = self.source, self.runtime.name
        start, expected = {**self.start, **self.rates}, Reference(source, self.start, self.rates)
        rng = np.random.default_rng(0)
        number, moved, answered = 0, 0.0, 0.0
        uneven = _any_width(self.runtime.bundle, name)
        for number, step in enumerate(_plan(source, self.widths, self.batch, uneven=uneven), start=1):
            data = _batch(source, rng, size=self.batch, real=step.samples)
            extra = {
                **_extra(source, self.variant, rng, step.pattern, data),
                **_output_noise(self.noisy, rng, step.pattern, self.batch),
            }
            lr = _step_size(source)
            given = Given(step.pattern, data, lr, step.scale, self.variant, extra, step.width)
            loss, true_loss = trained.step(given), expected.step(given)
            moved = max(moved, _moved(source, (start, trained.tensors), expected, limits, number))
            answered = max(answered, limits.largest(loss, true_loss, "the loss", number))
        return Parity(number, moved, answered)


class _Programs:
    """A model that a runtime trains."""

    def __init__(self, source: Source, runtime: Runtime, model: LocalModel) -> None:
        self._source, self._runtime, self._model = source, runtime, model
        self._rates = tuple(model.slots)
        self._number = 0

    @property
    def tensors(self) -> Weights:
        """The full tensors now, ``log_alpha.NAME`` among them."""
        return {**self._model.weights, **{name: self._model.slots[name] for name in self._rates}}

    def step(self, given: Given) -> float:
        """One step; raises ParityError when it changes what the pattern drops."""
        before = {name: array.copy() for name, array in self._model.weights.items()}
        self._number += 1
        loss = _run(self._runtime, self._model, given, self._number)
        _require_frozen(before, self._model.weights, given, self._source, self._runtime.name)
        return loss


def _start(source: Source, weights: Weights) -> Weights:
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


def _step_size(source: Source) -> float:
    if source.optimizer.name == "adam":
        return _ADAM_LR
    return _LR if source.batch_norm == "none" else _BATCH_NORM_LR


def _evaluated(source: Source, runtime: Runtime) -> float:
    weights = _start(source, runtime.bundle.weights())
    rng = np.random.default_rng(1)
    size = _EVALUATED if source.target.shape == () else 3
    data = _batch(source, rng, size=size, real=size - 1)
    weights, worst = _unlike_rows(source, weights), 0.0
    for width in source.statistic_widths or (1000,):
        loss, outputs = runtime.evaluator()(weights, data, width=width)
        true_loss, true_outputs = Reference(source, weights).evaluate(data, width)
        limits = _Limits(runtime.name)
        off = limits.largest(outputs, true_outputs, "an evaluation output", 0)
        worst = max(worst, off, limits.largest(loss, true_loss, "the evaluation loss", 0))
    return worst


def _unlike_rows(source: Source, weights: Weights) -> dict[str, NDArray[np.float32]]:
    """Statistics of each width start alike: apart, reading those of another width shows."""
    return {
        t.name: weights[t.name] + np.arange(t.shape[0], dtype=np.float32)[:, None]
        if t.per_width
        else weights[t.name]
        for t in source.layout.tensors
    }


def _moved(
    source: Source, weights: tuple[Weights, Weights], expected: Reference, limits: "_Limits", steps: int
) -> float:
    """The largest difference of ``weights``, at the start and now."""
    start, ours = weights
    theirs = expected.tensors
    worst = 0.0
    statistics = {tensor.name for tensor in source.layout.tensors if tensor.role == "statistic"}
    for name in ours:
        adam = source.optimizer.name == "adam"
        rate = name.startswith("log_alpha.")
        if (adam and name not in statistics) or rate:
            compared = ~expected.moved_by_rounding(name) if adam else slice(None)
            update = float(np.linalg.norm(theirs[name] - start[name]))
            least = _SMALLEST * (float(np.linalg.norm(start[name])) if rate else _ADAM_LR)
            off = float(np.linalg.norm((ours[name] - theirs[name])[compared])) / max(update, least)
            limits.require(off, ADAM_LIMIT, f"the weight '{name}'", steps)
        else:
            off = limits.largest(ours[name], theirs[name], f"the weight '{name}'", steps)
        worst = max(worst, off)
    return worst


_Place = tuple[int, float]
"""After how many steps, and which of the limits."""


class _Limits:
    """What is refused: a difference beyond its limit, or beyond the one that is ``widened`` at that place."""

    def __init__(self, runtime: str, widened: Mapping[_Place, float] | None = None) -> None:
        self._runtime, self._widened = runtime, widened or {}

    def largest(self, ours: Any, theirs: Any, what: str, steps: int) -> float:
        """The largest difference, over the largest entry; raises as :meth:`require`."""
        largest = max(_SMALLEST, float(np.max(np.abs(theirs), initial=0.0)))
        off = float(np.max(np.abs(np.subtract(ours, theirs)), initial=0.0)) / largest
        self.require(off, LIMIT, what, steps)
        return off

    def require(self, off: float, limit: float, what: str, steps: int) -> None:
        """Raise ParityError when ``off`` is too large."""
        allowed = self._widened.get((steps, limit), limit)
        if not off <= allowed:  # NaN is no difference that is small
            raise ParityError(
                f"The {self._runtime} programs do not compute what torch computes: {what} is off by {off:.2g} of "
                f"itself after {steps} steps (limit {allowed:.2g}), so no bundle was written; a model in which the "
                "samples of a batch influence one another other than by BatchNorm cannot be exported."
            )


class _Rounding(_Limits):
    """Refuses nothing, and remembers how far torch's float32 strays step by step."""

    def __init__(self, runtime: str) -> None:
        super().__init__(runtime)
        self._found: dict[_Place, float] = {}

    def require(self, off: float, limit: float, what: str, steps: int) -> None:
        """Take note of ``off``."""
        self._found[steps, limit] = max(off, self._found.get((steps, limit), 0.0))

    def widened(self) -> dict[_Place, float]:
        """A few times what float32 keeps, but never enough for a wrong program; nothing where it keeps the limits."""
        allowed = {
            (steps, limit): min(max(limit, _MORE_THAN_ROUNDING * off), _WIDEST * limit)
            for (steps, limit), off in self._found.items()
        }
        return {place: wide for place, wide in allowed.items() if wide > place[1]}


def _any_width(bundle: Bundle, runtime: str) -> bool:
    return all(program.kept is None for program in bundle.manifest.programs[runtime] if program.kind == "step")


def _plan(source: Source, widths: tuple[int, ...], batch: int, *, uneven: bool) -> Iterator[_Step]:
    """Every width at least twice, first unscaled, then scaled (and ``uneven`` across blocks); every other batch
    is short.
    """
    passes = max(2, -(-_LEAST_STEPS // len(widths)))
    for index, width in enumerate(widths * passes):
        again = index >= len(widths)
        counts = kept_at(source.layout, width)
        if uneven and again:
            counts = {name: max(min(2, n), n - i) for i, (name, n) in enumerate(counts.items())}
        short = index % 2 and source.batch_norm not in WHOLE_BATCHES
        yield _Step(
            _drawn(source.layout, counts, index),
            1000 / width if again else 1.0,
            batch - batch // 3 if short else batch,
            width,
        )


def _drawn(layout: Layout, counts: Mapping[str, int], index: int) -> Pattern:
    stream = Stream.of(seed=0, purpose="parity", index=index)
    mask = np.zeros(layout.units, dtype=np.bool_)
    start = 0
    for block in layout.blocks:
        mask[start + stream.subset(block.size, min(block.size, counts[block.name]))] = True
        start += block.size
    return Pattern(layout, mask)


def _batch(source: Source, rng: np.random.Generator, *, size: int, real: int) -> Batch:
    x = _values(source.input, rng, size, source.classes)
    y = _values(source.target, rng, size, source.classes)
    x[real:], y[real:] = 0, 0
    return Batch(x, y, (np.arange(size) < real).astype(np.float32))


def _values(what: Input, rng: np.random.Generator, size: int, classes: int) -> NDArray[Any]:
    shape = (size, *what.shape)
    if what.dtype == "int64":
        return rng.integers(0, classes, shape)
    return rng.standard_normal(shape).astype(np.float32)


def _extra(
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


def _rates(source: Source, noisy: tuple[Tensor, ...]) -> dict[str, NDArray[np.float32]]:
    """The full ``log_alpha.NAME`` that variational dropout starts from: rates from next to nothing to above 1/2."""
    rng = np.random.default_rng(3)
    shapes = {outputs.name: source.layout.tensor(outputs.name).shape for outputs in noisy}
    return {f"log_alpha.{name}": rng.uniform(-4, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def _output_noise(
    noisy: tuple[Tensor, ...], rng: np.random.Generator, pattern: Pattern, batch: int
) -> dict[str, NDArray[np.float32]]:
    """Full-size ``output_noise.NAME``, 0 where ``pattern`` drops a unit, and the weight ``kl`` of the divergence."""
    extra: dict[str, NDArray[np.float32]] = {"kl": np.array(0.1, dtype=np.float32)} if noisy else {}
    for outputs in noisy:
        at = _places(outputs, pattern)
        noise = np.zeros((batch, *outputs.shape), dtype=np.float32)
        noise[at] = rng.standard_normal(noise[at].shape)
        extra[f"output_noise.{outputs.name}"] = noise
    return extra


def _places(outputs: Tensor, pattern: Pattern) -> Index:
    """Where the outputs ``[B, ...]`` of kept units are."""
    layout = Layout(pattern.layout.blocks, (outputs,))
    return (slice(None), *Selection.of(Pattern(layout, pattern.mask), "units").index(outputs))


def _run(runtime: Runtime, model: LocalModel, given: Given, number: int) -> float:
    selection = Selection.of(given.pattern, "units")
    program = runtime.train_step(given.pattern.counts, len(given.batch.x), given.variant)
    kept = selection.gather(model.weights)
    slots = model.gather_slots(selection, program.fresh_slots(kept))
    extra = {name: _kept(array, name, given.pattern, selection) for name, array in given.extra.items()}
    for outputs in runtime.bundle.manifest.output_noise if given.variant == "vardrop" else ():
        name = f"output_noise.{outputs.name}"
        extra[name] = np.ascontiguousarray(given.extra[name][_places(outputs, given.pattern)])
    done = program(
        kept,
        given.batch,
        lr=given.lr,
        scale=given.scale,
        slots=slots,
        number=number,
        width=given.width,
        extra=extra,
    )
    model.put_back(selection, done.tensors, done.slots)
    return done.loss


def _kept(array: NDArray[Any], name: str, pattern: Pattern, selection: Selection) -> NDArray[Any]:
    kind, _, what = name.partition(".")
    if kind == "noise":
        return np.ascontiguousarray(array[selection.index(pattern.layout.tensor(what))])
    return array[pattern.kept[what]] if kind == "student" else array


def _require_frozen(before: Weights, after: Weights, given: Given, source: Source, runtime: str) -> None:
    rows = Selection.of(given.pattern, "rows")
    for tensor in source.layout.tensors:
        dropped = np.ones(tensor.shape, dtype=np.bool_)
        dropped[rows.index(tensor)] = False
        if tensor.per_width:  # aggregation takes a row that has not changed at all for one that was not trained
            written = one_hot(source.statistic_widths, given.width) + given.extra.get("student_width", 0)
            dropped[written == 0] = True
        if not np.array_equal(before[tensor.name][dropped], after[tensor.name][dropped]):
            raise ParityError(
                f"The {runtime} program changed dropped rows of '{tensor.name}'; no bundle was written."
            )
