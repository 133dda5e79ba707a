"""The places where a model drops, found by running it: of what axes their masks are."""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
from torch import Tensor

from edge_fl.core.dropout import Dropout
from edge_fl.core.errors import UnsupportedModelError
from edge_fl.core.frozen import cut_frozen
from edge_fl.core.layout import Axis, Layout, Segment
from edge_fl.core.layout import Tensor as Spec
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, kept_axes
from exporter.dropout_calls import MaskedDropout
from exporter.equivalence import every_other_unit, random_weights
from exporter.frozen_dtype import arrays_of
from exporter.source import DropoutPlace, Source, batch_ports
from exporter.where import Running
from exporter.written_out import written_out

__all__ = ["find_dropout"]

_BATCHES = (2, 3)
_CLOSE = 1e-4  # of the largest number


def find_dropout(source: Source) -> tuple[DropoutPlace | None, ...]:
    """Every call of dropout in a forward pass of ``source``'s module in training, in order.

    None stands for a call that no output hangs on, since features are kept above it.

    Raises
    ------
    UnsupportedModelError
        When the axes of a mask are not the batch, whole ones, and those of whole blocks.
    """
    runs = _Runs(source)
    calls, more = (runs.calls(batch=batch) for batch in _BATCHES)
    drafts = [_Draft(*pair) for pair in zip(calls, more, strict=True)]
    for block in source.layout.blocks if drafts else ():
        if block.size > 1:
            _find_units(runs, block.name, drafts)
    for number, draft in enumerate(drafts):
        for axis in range(len(draft.shape)):
            if draft.units[axis]:
                _arrange(runs, number, draft, axis)
    heard = runs.heard() if source.below and drafts else [True] * len(drafts)
    return tuple(
        draft.place(name) if read else None for draft, name, read in zip(drafts, _names(calls), heard, strict=True)
    )


@dataclass
class _Call:
    """One call of dropout: what it was given, the mask that it got, its probability, and the module that called."""

    x: Tensor
    mask: Tensor
    p: float
    module: str


class _Noting(MaskedDropout):
    """Notes every call, and drops nothing."""

    def __init__(self, running: Running) -> None:
        super().__init__()
        self._running = running
        self.calls: list[_Call] = []

    def mask(self, x: Tensor, shape: Sequence[int], p: float) -> Tensor:
        mask = torch.ones(tuple(shape), requires_grad=True)
        self.calls.append(_Call(x.detach().clone(), mask, p, self._running.module))
        return mask


class _Runs:
    """Forward passes of a source's module under random weights."""

    def __init__(self, source: Source) -> None:
        self._source, self._module = source, copy.deepcopy(source.module)
        self._weights = random_weights((tensor.name, tensor.shape) for tensor in source.layout.tensors)
        self._frozen = arrays_of(source.original, source.layout)
        self._both: dict[str, tuple[list[_Call], list[_Call]]] = {}

    @property
    def layout(self) -> Layout:
        """The source's."""
        return self._source.layout

    def both(self, block: str) -> tuple[list[_Call], list[_Call]]:
        """The calls without every other unit of ``block``: with these at zero, and without them."""
        if block not in self._both:
            pattern = every_other_unit(self.layout, block)
            self._both[block] = self.calls(pattern, compact=False), self.calls(pattern)
        return self._both[block]

    def calls(
        self, pattern: Pattern | None = None, *, batch: int = _BATCHES[0], compact: bool = True
    ) -> list[_Call]:
        """The calls of one pass: of what ``pattern`` keeps if ``compact``, else with what it drops at zero."""
        return self._run(pattern, batch, compact=compact)[1]

    def heard(self) -> list[bool]:
        """Of each call, whether the outputs hang on its mask."""
        outputs, calls = self._run(None, _BATCHES[0], compact=True)
        given = torch.autograd.grad(outputs.sum(), [call.mask for call in calls], allow_unused=True)
        return [gradient is not None for gradient in given]

    def _run(self, pattern: Pattern | None, batch: int, *, compact: bool) -> tuple[Tensor, list[_Call]]:
        source, weights, frozen = self._source, self._weights, self._frozen
        if pattern is not None:
            units, rows = Selection.of(pattern, "units"), Selection.of(pattern, "rows")
            zeroed = {name: np.zeros_like(array) for name, array in weights.items()}
            rows.scatter(rows.gather(weights), zeroed)
            weights = units.gather(weights) if compact else zeroed
            frozen = cut_frozen(frozen, pattern) if compact else frozen
        arrays = {**weights, **frozen}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        with Running(self._module) as running, written_out(), _Noting(running) as noting:
            return source.outputs(self._module, tensors, _samples(source, batch)), noting.calls


def _samples(source: Source, batch: int) -> Tensor:
    x = next(port for port in batch_ports(source) if port.name == "x").example({}, batch)
    if not x.is_floating_point() or source.inputs:
        return x
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(0))


class _Draft:
    """What is known of a place so far: the mask's shape without the batch, and of each axis how many indices a unit
    of which blocks has there, and then its segments.
    """

    def __init__(self, call: _Call, more: _Call) -> None:
        few, many = _BATCHES
        lengths = list(zip(call.mask.shape, more.mask.shape, strict=True))
        grown = [axis for axis, (short, long) in enumerate(lengths) if short != long]
        short, long = lengths[grown[0]] if len(grown) == 1 else (1, 1)
        self.call, self._batch_axis, self._merged = call, grown[0] if grown else 0, short > few
        if short % few or short // few * many != long or (self._merged and self._batch_axis):
            raise self.refusal("the batch is not an axis of what it drops")
        self.shape = self.of(call.mask).shape[1:]
        self.units: list[dict[str, int]] = [{} for _ in self.shape]
        self.axes: list[Axis] = [(Segment(None, inner=length),) for length in self.shape]

    def of(self, dropped: Tensor) -> Tensor:
        """What is dropped, or a mask of it, with the batch as its first axis, and that alone."""
        if self._merged:
            return dropped.reshape(_BATCHES[0], -1, *dropped.shape[1:])
        return dropped.movedim(self._batch_axis, 0)

    def place(self, name: str) -> DropoutPlace:
        """All of it."""
        mask = Spec(name, tuple(self.shape), tuple(self.axes), tuple(self.axes))
        return DropoutPlace(Dropout(mask, self.call.p), self._batch_axis, self._merged)

    def refusal(self, reason: str) -> UnsupportedModelError:
        """Why it cannot be a program's input."""
        where = f"of '{self.call.module}'" if self.call.module else "of the model itself"
        return UnsupportedModelError(
            f"The dropout {where} cannot be an input of a program, since {reason}: export with --no-dropout."
        )


def _find_units(runs: _Runs, block: str, drafts: list[_Draft]) -> None:
    """Find the axes that have units of ``block``: they get shorter without some of them."""
    pattern = every_other_unit(runs.layout, block)
    dropped = runs.layout.sizes[block] - pattern.counts[block]
    for draft, call in zip(drafts, runs.calls(pattern), strict=True):
        left = draft.of(call.mask).shape[1:]
        for units, before, after in zip(draft.units, draft.shape, left, strict=True):
            each, rest = divmod(before - after, dropped)
            if rest:
                raise draft.refusal(f"an axis of its mask does not shrink with the units of '{block}'")
            if each:
                units[block] = each


def _arrange(runs: _Runs, number: int, draft: _Draft, axis: int) -> None:
    """Find in which order the units of one axis of a place lie."""
    units, length, sizes = draft.units[axis], draft.shape[axis], runs.layout.sizes
    if sum(each * sizes[block] for block, each in units.items()) != length:
        raise draft.refusal(f"an axis of its mask has more than the units of {sorted(units)}")
    ways = list(_arrangements(units))
    draft.axes[axis] = ways[0]
    if len(ways) == 1:
        return
    seen = {
        block: [draft.of(calls[number].x).movedim(axis + 1, 0) for calls in runs.both(block)] for block in units
    }
    for way in ways:
        draft.axes[axis] = way
        if all(_fits(way, every_other_unit(runs.layout, block), *both) for block, both in seen.items()):
            return
    raise draft.refusal(f"the units of {sorted(units)} are in no order there")


def _arrangements(units: Mapping[str, int]) -> Iterator[Axis]:
    """The ways in which units may lie, of each as many indices as ``units`` says; most usual first."""
    if len(units) > 1:
        yield from permutations(Segment(block, inner=each) for block, each in units.items())
        return
    for block, each in units.items():
        yield from ((Segment(block, outer, each // outer),) for outer in range(1, each + 1) if each % outer == 0)


def _fits(way: Axis, pattern: Pattern, among: Tensor, alone: Tensor) -> bool:
    """Whether what ``pattern`` keeps of the first axis, ``among`` units that are zero, is what it gives ``alone``."""
    (kept,) = kept_axes(Spec("mask", (len(among),), (way,), (way,)), pattern, "units")
    taken = among[torch.from_numpy(kept)]
    return bool((taken - alone).abs().max() <= _CLOSE * (1 + alone.abs().max()))


def _names(calls: Sequence[_Call]) -> list[str]:
    """The calling modules' names, numbered from the second call of one on."""
    seen = Counter[str]()
    names = []
    for call in calls:
        seen[call.module] += 1
        name = call.module or "model"
        names.append(name if seen[call.module] == 1 else f"{name}#{seen[call.module]}")
    return names
