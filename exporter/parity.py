"""The proof that a bundle's programs compute what torch computes: several steps, a new pattern each."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from edge_fl.core.bundle import Bundle, Parity
from edge_fl.core.errors import ParityError
from edge_fl.core.inputs import places
from edge_fl.core.layout import Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights, kept_entries
from edge_fl.core.width_statistics import one_hot
from edge_fl.runtimes.base import Runtime, open_runtime
from edge_fl.training.local_model import LocalModel
from exporter.accept import Fit, example_inputs
from exporter.features import Below
from exporter.limits import ADAM_LIMIT, SMALLEST, DifferenceError, Limits, Rounding
from exporter.lower import program_widths
from exporter.proof_steps import (
    made_up_batch,
    made_up_extra,
    made_up_masks,
    made_up_noise,
    plan_steps,
    start_rates,
    start_weights,
    step_size,
)
from exporter.reference import Given, Reference
from exporter.source import Source

__all__ = ["check_parity"]

_EVALUATED = 230
_DRAWS = 3
_SMALLER = (1.0, 0.1, 0.01, 1e-3, 1e-4)  # times the usual step size, for what diverges at it
_DIVERGED = 1e6  # times the first loss, where nothing is scaled
_UNSTABLE = 1e2  # the same, of a proof that strays: rounding grows with the loss
_SCALED = 4  # a loss grows by a power of the factor of its layers, and no more than this in what is trained
_OF_THE_MOVE = 0.1  # what a weight may be off by in smaller steps, of how far it has moved
_FEATURED = 23  # samples whose features are compared: a piece and a part of one, where programs are static
_UNSEEN = 1e-5  # of a weight: a move that float32 does not show


def check_parity(
    source: Source,
    bundle: Bundle,
    runtime: str,
    *,
    widths: tuple[int, ...],
    batch: int,
    below: Below | None = None,
) -> Parity:
    """Compare the programs of ``runtime`` with torch in double precision, at ``widths`` (thousandths).

    Batches are full and short, short ones only where BatchNorm does not make the samples depend on one another. In deep
    networks, and under Adam, rounding grows from step to step. So a program that strays is tried again with every step
    from the weights that double precision came to, and within limits that torch's own float32 keeps there. And where
    rounding has thrown a value over a ReLU's kink or to another maximum of a pool, the next draw of batches and
    patterns does not: a program is refused when it keeps the limits in none of three draws. A model whose training
    diverges, as a pretrained one's may by made-up samples, has nothing to compare: it is trained in smaller steps. So
    is one that strays while its loss grows, or that strays in one draw and diverges in another.
    Features are held to ``below``.

    Returns
    -------
    The largest differences seen, relative as :mod:`exporter.limits` says.

    Raises
    ------
    ParityError
        When one exceeds its limit in every draw, an entry that a step's pattern drops has changed at all, or training
        diverges in the smallest steps, too.
    """
    opened = open_runtime(runtime, bundle)
    if not _any_width(bundle, runtime):
        widths = program_widths(source.layout, widths)
    variants = {program.variant for program in bundle.manifest.programs[runtime] if program.kind == "step"}
    found = [_proven(source, opened, variant, widths, batch) for variant in sorted(variants)]
    answered = _evaluated(source, opened)
    if below is not None:
        answered = max(answered, _features(below, opened))
    return Parity(
        steps=max(proof.steps for proof in found),
        weights=_in_two_digits(max(proof.weights for proof in found)),
        outputs=_in_two_digits(max(answered, *(proof.outputs for proof in found))),
    )


def _in_two_digits(off: float) -> float:
    """Further digits depend on how many threads torch has, and two exports of a model are one bundle."""
    return float(f"{off:.2g}")


def _proven(source: Source, runtime: Runtime, variant: str, widths: tuple[int, ...], batch: int) -> Parity:
    """The proof with the largest step size that does not diverge."""
    strays: BaseException | None = None
    for smaller in _SMALLER:
        lr = smaller * step_size(source)
        try:
            return _drawn([_Proof(source, runtime, variant, widths, batch, draw, lr) for draw in range(_DRAWS)])
        except _DivergedError as error:
            strays = error.__cause__
    if strays is not None:
        raise strays
    raise ParityError(
        f"The model's own training diverges on made-up samples, with a step size of {lr:g}, too, so that no program "
        "can be compared with it: normalise its input or its layers."
    )


def _drawn(proofs: "list[_Proof]") -> Parity:
    """The proof of the first draw that keeps the limits.

    Raises DifferenceError when all stray, and _DivergedError when one diverges, because of what strayed beside it.
    """
    strays: DifferenceError | None = None
    diverged: _DivergedError | None = None
    for proof in proofs:
        try:
            return _within_limits(proof)
        except DifferenceError as error:
            strays = error
        except _DivergedError as error:
            diverged = error
    if diverged is None and strays is not None:
        raise strays
    raise diverged or _DivergedError from strays


def _within_limits(proof: "_Proof") -> Parity:
    """The proof within the limits, or step by step within those that torch's float32 keeps."""
    name = proof.runtime.name
    try:
        return proof.run(proof.programs(), Limits(name))
    except DifferenceError:
        rounding = Rounding(name, adam=proof.source.optimizer.name == "adam")
        proof.run(proof.single_precision(), rounding, step_by_step=True)
        return proof.run(proof.programs(), Limits(name, rounding.widened()), step_by_step=True)


class _DivergedError(Exception):
    """The loss grows in double precision, too."""


class _Trained(Protocol):
    """A model in training: its full tensors, and a step, which gives the loss."""

    @property
    def tensors(self) -> Weights: ...

    def step(self, given: Given) -> float: ...

    def put(self, tensors: Weights) -> None: ...


@dataclass(frozen=True)
class _Proof:
    """Steps of one variant, each compared with torch's in double precision."""

    source: Source
    runtime: Runtime
    variant: str
    widths: tuple[int, ...]
    batch: int
    draw: int
    lr: float

    @cached_property
    def start(self) -> Weights:
        return start_weights(self.source, self.runtime.bundle.weights())

    @property
    def noisy(self) -> tuple[Tensor, ...]:
        return self.runtime.bundle.manifest.output_noise if self.variant == "vardrop" else ()

    @cached_property
    def rates(self) -> Weights:
        return start_rates(self.source, self.noisy)

    def programs(self) -> "_Programs":
        """What the runtime makes of the model."""
        return _Programs(self.source, self.runtime, LocalModel(self.start, self.rates))

    def single_precision(self) -> Reference:
        """What torch makes of it in float32."""
        return Reference(self.source, self.start, self.rates, dtype=torch.float32)

    def run(self, trained: _Trained, limits: Limits, *, step_by_step: bool = False) -> Parity:
        """Compare after every step; raises DifferenceError when a difference is beyond ``limits``.

        ``step_by_step``, each step begins with the tensors of double precision.
        """
        source, name = self.source, self.runtime.name
        start, expected = {**self.start, **self.rates}, Reference(source, self.start, self.rates)
        rng = np.random.default_rng(self.draw)
        number, moved, answered, first = 0, 0.0, 0.0, math.inf
        uneven = _any_width(self.runtime.bundle, name)
        plan = plan_steps(source, self.widths, self.batch, draw=self.draw, uneven=uneven)
        for number, step in enumerate(plan, start=1):
            data = made_up_batch(source, rng, size=self.batch, real=step.samples)
            extra = {
                **made_up_extra(source, self.variant, rng, step.pattern, data),
                **made_up_noise(self.noisy, rng, step.pattern, self.batch),
                **made_up_masks(source, rng, self.batch),
            }
            given = Given(step.pattern, data, self.lr, step.scale, self.variant, extra, step.width)
            if step_by_step:
                trained.put(expected.tensors)
            loss, true_loss = trained.step(given), expected.step(given)
            first = max(abs(true_loss), 1.0) if number == 1 else first
            if not abs(true_loss) <= (_UNSTABLE if step_by_step else _DIVERGED) * first * step.scale**_SCALED:
                raise _DivergedError
            moved = max(moved, self._moved((start, trained.tensors), expected, limits, number))
            answered = max(answered, limits.largest(loss, true_loss, "the loss", number))
        return Parity(number, moved, answered)

    def _moved(self, weights: tuple[Weights, Weights], expected: Reference, limits: Limits, steps: int) -> float:
        """The largest difference of ``weights``, at the start and now."""
        start, ours = weights
        theirs = expected.tensors
        worst = 0.0
        statistics = {tensor.name for tensor in self.source.layout.statistics}
        for name in ours:
            adam = self.source.optimizer.name == "adam"
            rate = name.startswith("log_alpha.")
            if (adam and name not in statistics) or rate:
                compared = ~expected.moved_by_rounding(name) if adam else slice(None)
                update = float(np.linalg.norm(theirs[name] - start[name]))
                least = SMALLEST * (float(np.linalg.norm(start[name])) if rate else self.lr)
                off = float(np.linalg.norm((ours[name] - theirs[name])[compared])) / max(update, least)
                limits.require(off, ADAM_LIMIT, f"the weight '{name}'", steps)
            else:
                off = limits.largest(ours[name], theirs[name], f"the weight '{name}'", steps)
                if name not in statistics and self.lr < step_size(self.source):
                    # Smaller steps may hide below a limit that goes by the weight's size.
                    moved, size = (
                        float(np.linalg.norm(array)) for array in (theirs[name] - start[name], theirs[name])
                    )
                    apart = float(np.linalg.norm(ours[name] - theirs[name])) / max(moved, _UNSEEN * size, 1e-30)
                    limits.require(apart, _OF_THE_MOVE, f"the change of '{name}'", steps)
            worst = max(worst, off)
        return worst


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

    def put(self, tensors: Weights) -> None:
        """Take the values of ``tensors``; the optimiser's other state stays."""
        for name, array in self.tensors.items():
            np.copyto(array, tensors[name], casting="same_kind")


def _evaluated(source: Source, runtime: Runtime) -> float:
    weights = start_weights(source, runtime.bundle.weights())
    rng = np.random.default_rng(1)
    size = _EVALUATED if source.target.shape == () else 3
    data = made_up_batch(source, rng, size=size, real=size - 1)
    weights, worst = _unlike_rows(source, weights), 0.0
    for width in source.statistic_widths or (1000,):
        loss, outputs = runtime.evaluator()(weights, data, width=width)
        true_loss, true_outputs = Reference(source, weights).evaluate(data, width)
        limits = Limits(runtime.name)
        off = limits.largest(outputs, true_outputs, "an evaluation output", 0)
        worst = max(worst, off, limits.largest(loss, true_loss, "the evaluation loss", 0))
    return worst


def _features(below: Below, runtime: Runtime) -> float:
    """More samples than one piece of a static program."""
    whole, size = below.whole, _FEATURED
    x = example_inputs(Fit(whole.input, (), whole.classes, whole.inputs), size).numpy()
    found, true, limits = runtime.features(x), below(x), Limits(runtime.name)
    at = places(below.cut.parts).values()  # a mask's numbers would hide all others
    return max(limits.largest(found[:, part], true[:, part], "a feature", 0) for part in at)


def _unlike_rows(source: Source, weights: Weights) -> dict[str, NDArray[np.float32]]:
    """Statistics of each width start alike: apart, reading those of another width shows."""
    return {
        t.name: weights[t.name] + np.arange(t.shape[0], dtype=np.float32)[:, None]
        if t.per_width
        else weights[t.name]
        for t in source.layout.tensors
    }


def _any_width(bundle: Bundle, runtime: str) -> bool:
    return all(program.kept is None for program in bundle.manifest.programs[runtime] if program.kind == "step")


def _run(runtime: Runtime, model: LocalModel, given: Given, number: int) -> float:
    selection = Selection.of(given.pattern, "units")
    program = runtime.train_step(given.pattern, len(given.batch.x), given.variant)
    kept = selection.gather(model.weights)
    slots = model.gather_slots(selection, program.fresh_slots(kept))
    extra = {name: _kept(array, name, given.pattern, selection) for name, array in given.extra.items()}
    for outputs in runtime.bundle.manifest.output_noise if given.variant == "vardrop" else ():
        name = f"output_noise.{outputs.name}"
        extra[name] = kept_entries(outputs, given.pattern, given.extra[name], first=1)
    for place in runtime.bundle.manifest.dropout:
        extra[place.input] = kept_entries(place.mask, given.pattern, given.extra[place.input], first=1)
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
