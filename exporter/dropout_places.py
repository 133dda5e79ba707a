"""The places where a model drops, found by running it: of what axes their masks are."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge_fl.core.dropout import Dropout
from edge_fl.core.errors import UnsupportedModelError
from edge_fl.core.frozen import cut_frozen
from edge_fl.core.layout import Axis, Layout, Segment
from edge_fl.core.layout import Tensor as Spec
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, kept_axes
from exporter.accept import Fit, example_inputs
from exporter.dropout_calls import MaskedDropout
from exporter.equivalence import every_other_unit, random_weights, with_rows_at_zero
from exporter.frozen_dtype import arrays_of
from exporter.own_outputs import flat_outputs
from exporter.source import DropoutPlace, Source
from exporter.where import Running
from exporter.written_out import written_out

__all__ = ["find_dropout"]

_FEW, _MANY = 2, 3  # samples
_CLOSE = 1e-4  # of the largest number


def find_dropout(source: Source) -> tuple[DropoutPlace | None, ...]:
    """Every call of dropout in a forward pass of ``source``'s module in training, in order.

    None stands for a call that no output hangs on, since features are kept above it.

    Raises
    ------
    UnsupportedModelError
        When the axes of a mask are not the batch and others that are the same for every batch, or units of blocks.
    """
    runs = _Runs(source)
    drafts = [_Draft(*pair) for pair in _together(runs.calls(), runs.calls(samples=_MANY))]
    if any(draft.merged for draft in drafts):
        for draft, call in _together(drafts, runs.calls(alike=True, values=True)):
            draft.find_order(call)
    for block in source.layout.blocks if drafts else ():
        if block.size > 1:
            _find_units(runs, block.name, drafts)
    heard = runs.heard(len(drafts)) if source.below else [True] * len(drafts)
    named = zip(drafts, _names([draft.call for draft in drafts]), heard, strict=True)
    return tuple(draft.place(name, source.layout.sizes) if read else None for draft, name, read in named)


@dataclass
class _Call:
    """One call of dropout: the shape of its mask, its probability, the module that called, and perhaps what it got."""

    shape: tuple[int, ...]
    p: float
    module: str
    x: Tensor | None


class _Noting(MaskedDropout):
    """Notes every call, with what it drops where ``values`` are wanted; nothing is kept of the call ``muted``."""

    def __init__(self, running: Running, *, values: bool, muted: int | None) -> None:
        super().__init__()
        self._running, self._values, self._muted = running, values, muted
        self.calls: list[_Call] = []

    def mask(self, x: Tensor, shape: Sequence[int], p: float) -> Tensor | None:
        kept = x.detach().clone() if self._values else None
        self.calls.append(_Call(tuple(shape), p, self._running.module, kept))
        return x.new_zeros(tuple(shape)) if len(self.calls) - 1 == self._muted else None


class _Runs:
    """Forward passes of a source's module under random weights."""

    def __init__(self, source: Source) -> None:
        self._source, self._module = source, copy.deepcopy(source.module)
        drawn = random_weights((tensor.name, tensor.shape) for tensor in source.layout.tensors)
        # Above zero, so that a ReLU seldom hides a unit.
        self._weights = {name: np.abs(array) if name.endswith("bias") else array for name, array in drawn.items()}
        self._frozen = arrays_of(source.original, source.layout)

    @property
    def layout(self) -> Layout:
        """The source's."""
        return self._source.layout

    def calls(
        self,
        pattern: Pattern | None = None,
        *,
        samples: int = _FEW,
        alike: bool = False,
        compact: bool = True,
        values: bool = False,
    ) -> list[_Call]:
        """The calls of one pass over ``samples``, which may be ``alike``.

        It is of what ``pattern`` keeps if ``compact``, else with what the pattern drops at zero.
        """
        return self._run(pattern, self._samples(samples, alike=alike), compact=compact, values=values)[1]

    def heard(self, calls: int) -> list[bool]:
        """Of each of so many calls, whether the outputs hang on what it keeps."""
        whole, _ = self._run(None, self._samples(_FEW))
        return [not torch.equal(whole, self._run(None, self._samples(_FEW), muted=n)[0]) for n in range(calls)]

    def _run(
        self,
        pattern: Pattern | None,
        x: Tensor,
        *,
        compact: bool = True,
        values: bool = False,
        muted: int | None = None,
    ) -> tuple[Tensor, list[_Call]]:
        weights, frozen = self._weights, self._frozen
        if pattern is not None and compact:
            weights, frozen = Selection.of(pattern, "units").gather(weights), cut_frozen(frozen, pattern)
        elif pattern is not None:
            weights = with_rows_at_zero(weights, pattern)
        arrays: dict[str, NDArray[Any]] = {**weights, **frozen}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            running = stack.enter_context(Running(self._module))
            stack.enter_context(written_out())
            noting = stack.enter_context(_Noting(running, values=values, muted=muted))
            return flat_outputs(self._source.outputs(self._module, tensors, x)), noting.calls

    def _samples(self, number: int, *, alike: bool = False) -> Tensor:
        source = self._source
        x = example_inputs(Fit(source.input, (), source.vocabulary or source.classes, source.inputs), number)
        return x[:1].expand_as(x).clone() if alike else x


class _Draft:
    """What is known of a place so far: the mask's shape without the batch, and where units lie on its axes."""

    def __init__(self, call: _Call, more: _Call) -> None:
        lengths = list(zip(call.shape, more.shape, strict=False))
        grown = [axis for axis, (short, long) in enumerate(lengths) if short != long]
        short, long = lengths[grown[0]] if len(grown) == 1 else (1, 1)
        self.call, self._batch_axis, self.merged = call, grown[0] if grown else 0, short > _FEW
        if short % _FEW or short // _FEW * _MANY != long or (self.merged and self._batch_axis):
            raise self.refusal("what it drops has no axis of samples")
        self.shape = self.shape_of(call)
        self._units: list[list[tuple[int, Segment]]] = [[] for _ in self.shape]

    def find_order(self, call: _Call) -> None:
        """Of an axis that has the batch and another: which of them comes first, from samples that are alike."""
        for axis in (0, 1) if self.merged else ():
            self._batch_axis = axis
            first, second = self.values(call)
            if _close(first, second):
                return
        if self.merged:
            raise self.refusal("what it drops has no axis of samples")

    def shape_of(self, call: _Call) -> tuple[int, ...]:
        """The shape of the mask of one sample."""
        shape = list(call.shape)
        length = shape.pop(self._batch_axis if not self.merged else 0)
        return (length // _FEW, *shape) if self.merged else tuple(shape)

    def values(self, call: _Call) -> Tensor:
        """What a call dropped, ``[B, ...]``."""
        assert call.x is not None
        if not self.merged:
            return call.x.movedim(self._batch_axis, 0)
        if self._batch_axis:
            return call.x.reshape(-1, _FEW, *call.x.shape[1:]).transpose(0, 1)
        return call.x.reshape(_FEW, -1, *call.x.shape[1:])

    def put(self, axis: int, start: int, segment: Segment) -> None:
        """Note where units lie."""
        self._units[axis].append((start, segment))

    def place(self, name: str, sizes: dict[str, int]) -> DropoutPlace:
        """All of it."""
        axes = tuple(
            self._axis(units, length, sizes) for units, length in zip(self._units, self.shape, strict=True)
        )
        return DropoutPlace(
            Dropout(Spec(name, self.shape, axes, axes), self.call.p), self._batch_axis, self.merged
        )

    def _axis(self, units: Iterable[tuple[int, Segment]], length: int, sizes: dict[str, int]) -> Axis:
        segments, end = list[Segment](), 0
        for start, segment in sorted(units, key=lambda unit: unit[0]):
            if start < end:
                raise self.refusal("two blocks have units in one place")
            segments += [*([Segment(None, inner=start - end)] if start > end else []), segment]
            end = start + segment.length(sizes)
        return (*segments, *([Segment(None, inner=length - end)] if length > end else []))

    def refusal(self, reason: str) -> UnsupportedModelError:
        """Why it cannot be a program's input."""
        where = f"of '{self.call.module}'" if self.call.module else "of the model itself"
        return UnsupportedModelError(
            f"The dropout {where} cannot be drawn sample by sample, since {reason}: export with --no-dropout."
        )


def _find_units(runs: _Runs, block: str, drafts: list[_Draft]) -> None:
    """Find the axes that have units of ``block``, which get shorter without some of them, and where these lie."""
    pattern = every_other_unit(runs.layout, block)
    size, dropped = runs.layout.sizes[block], runs.layout.sizes[block] - pattern.counts[block]
    unclear: list[tuple[int, int, int]] = []
    for number, (draft, call) in enumerate(_together(drafts, runs.calls(pattern))):
        for axis, (before, after) in enumerate(zip(draft.shape, draft.shape_of(call), strict=True)):
            each, rest = divmod(before - after, dropped)
            if rest:
                raise draft.refusal(f"an axis of its mask does not shrink with the units of '{block}'")
            if each == 1 and size == before:
                draft.put(axis, 0, Segment(block))
            elif each:
                unclear.append((number, axis, each))
    if not unclear:
        return
    among, alone = (runs.calls(pattern, compact=compact, values=True) for compact in (False, True))
    for number, axis, each in unclear:
        draft = drafts[number]
        both = [draft.values(calls[number]).movedim(axis + 1, 0) for calls in (among, alone)]
        found = _located(both[0], both[1], pattern, _Units(block, each))
        if found is None:
            raise draft.refusal(f"the units of '{block}' are in no order there")
        draft.put(axis, *found)


class _Units(NamedTuple):
    """The units of a block on an axis, which have so many indices each there."""

    block: str
    each: int


def _located(among: Tensor, alone: Tensor, pattern: Pattern, units: _Units) -> tuple[int, Segment] | None:
    """Where the units begin on the first axis, and how they lie.

    ``among`` the others, those that ``pattern`` drops are zero; ``alone`` is without them. As the pattern drops the
    first unit, the axes part where the units begin, or behind units that are zero as well.
    """
    length = units.each * pattern.layout.sizes[units.block]
    start = next((i for i, (a, b) in enumerate(zip(among, alone, strict=False)) if not _close(a, b)), len(alone))
    while start >= 0:
        for segment in _arrangements(units) if start + length <= len(among) else ():
            rest = len(among) - start - length
            axis = tuple(
                part for part in (Segment(None, inner=start), segment, Segment(None, inner=rest)) if part.inner
            )
            (kept,) = kept_axes(Spec("mask", (len(among),), (axis,), (axis,)), pattern, "units")
            assert kept is not None
            if _close(among[torch.from_numpy(kept)], alone):
                return start, segment
        start -= 1
        if start >= 0 and among[start].any():
            return None
    return None


def _arrangements(units: _Units) -> Iterator[Segment]:
    """The ways in which they may lie, most usual first."""
    for outer in range(1, units.each + 1):
        if units.each % outer == 0:
            yield Segment(units.block, outer, units.each // outer)


def _close(first: Tensor, second: Tensor) -> bool:
    return bool((first - second).abs().max() <= _CLOSE * (1 + second.abs().max()))


def _together(*calls: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The calls of several passes side by side."""
    if len({len(each) for each in calls}) > 1:
        raise UnsupportedModelError(
            "The model drops more often in one forward pass than in another: let it drop in the same places each time, "
            "or export with --no-dropout."
        )
    return zip(*calls, strict=True)


def _names(calls: Iterable[_Call]) -> list[str]:
    """The calling modules' names, numbered where one is taken."""
    names: dict[str, None] = {}
    for call in calls:
        name, number = call.module or "model", 1
        while (numbered := name if number == 1 else f"{name}#{number}") in names:
            number += 1
        names[numbered] = None
    return list(names)
