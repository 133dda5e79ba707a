"""What a pattern keeps of each tensor: gathering kept entries, and putting them back.

The compact program runs on what ``gather`` returns in ``units`` mode; a frame carries what it returns in the
method's own mode.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Axis, Layout, Mode, Tensor
from edge_fl.core.pattern import Pattern

__all__ = ["Index", "Kept", "Selection", "Weights", "kept_axes", "kept_entries", "kept_shape", "masked"]

_Entry = TypeVar("_Entry", bound=np.generic)

Weights = Mapping[str, NDArray[np.float32]]
"""Tensors by name, in the layout's order."""

Kept = NDArray[np.int64] | None
"""The kept indices of an axis, ascending; None for all of them."""

Index = tuple[NDArray[np.int64] | slice, ...]
"""A numpy index of the kept entries of one tensor."""


@dataclass(frozen=True)
class Selection:
    """What ``pattern`` keeps of every axis of every tensor of ``layout``."""

    layout: Layout
    pattern: Pattern
    mode: Mode

    @classmethod
    def of(cls, pattern: Pattern, mode: Mode) -> "Selection":
        """The selection that ``pattern`` makes in ``mode`` of what devices share."""
        return cls(pattern.layout, pattern, mode)

    @classmethod
    def of_trained(cls, pattern: Pattern, mode: Mode = "units") -> "Selection":
        """The same of all that a device trains, its personal tensors among it; a step takes it in ``units`` mode."""
        return cls(pattern.layout.trained, pattern, mode)

    @cached_property
    def axes(self) -> dict[str, tuple[Kept, ...]]:
        """What is kept of each axis of every tensor, by its name."""
        return {tensor.name: kept_axes(tensor, self.pattern, self.mode) for tensor in self.layout.tensors}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of what is kept of every tensor, by its name; the pattern's counts tell."""
        return {t.name: _shape(t.axes(self.mode), self.pattern) for t in self.layout.tensors}

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of what is kept of ``tensor``."""
        return self.shapes[tensor.name]

    def gather_into(self, tensor: Tensor, full: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        """Copy the kept entries of ``full`` into ``out`` (of :meth:`shape`)."""
        narrowed = [(axis, kept) for axis, kept in enumerate(self.axes[tensor.name]) if kept is not None]
        if not narrowed:
            out[...] = full
            return
        *others, (last, indices) = narrowed
        for axis, kept in others:
            full = full.take(kept, axis=axis)  # an axis after another is quicker than all in one index
        np.take(full, indices, axis=last, out=out, mode="clip")

    def kept(self, tensor: Tensor, full: NDArray[np.float32]) -> NDArray[np.float32]:
        """The kept entries of ``full``: itself, where these are all."""
        if all(kept is None for kept in self.axes[tensor.name]):
            return full
        out = np.empty(self.shape(tensor), dtype=np.float32)
        self.gather_into(tensor, full, out)
        return out

    def gather(self, weights: Weights) -> dict[str, NDArray[np.float32]]:
        """The kept entries of every tensor, as new C-contiguous arrays."""
        kept = {}
        for tensor in self.layout.tensors:
            kept[tensor.name] = np.empty(self.shape(tensor), dtype=np.float32)
            self.gather_into(tensor, weights[tensor.name], kept[tensor.name])
        return kept

    def scatter(self, kept: Weights, into: Mapping[str, NDArray[np.float32]]) -> None:
        """Write kept entries back into the full tensors, leaving every other entry as it is."""
        for tensor in self.layout.tensors:
            self._put(tensor, kept[tensor.name], into[tensor.name])

    def _put(self, tensor: Tensor, kept: NDArray[np.float32], full: NDArray[np.float32]) -> None:
        axes = self.axes[tensor.name]
        rows, columns = axes if len(axes) == 2 else (None, None)
        if rows is not None and columns is not None and full.flags.c_contiguous:
            places = rows[:, np.newaxis] * full.shape[1] + columns  # numpy is slow at two indices
            full.reshape(-1)[places] = kept
        else:
            full[self.index(tensor)] = kept

    def widened(self, kept: Weights, other: "Selection") -> dict[str, NDArray[np.float32]]:
        """What this selection keeps of tensors that are zero but for what an ``other`` one of its pattern keeps.

        In ``rows`` mode a pattern keeps the columns of dropped units, too, which in ``units`` mode it does not.
        """
        return {tensor.name: self._widened(tensor, kept[tensor.name], other) for tensor in self.layout.tensors}

    def _widened(self, tensor: Tensor, kept: NDArray[np.float32], other: "Selection") -> NDArray[np.float32]:
        axes = zip(self.axes[tensor.name], other.axes[tensor.name], strict=True)
        if all(own is theirs or np.array_equal(own, theirs) for own, theirs in axes):  # type: ignore[arg-type]
            return kept
        full = np.zeros(tensor.shape, dtype=np.float32)
        other._put(tensor, kept, full)
        return self.kept(tensor, full)

    def index(self, tensor: Tensor) -> Index:
        """A numpy index of the kept entries of ``tensor``."""
        axes = self.axes[tensor.name]
        if sum(kept is not None for kept in axes) <= 1:
            return tuple(slice(None) if kept is None else kept for kept in axes)
        whole = [np.arange(n) if kept is None else kept for n, kept in zip(tensor.shape, axes, strict=True)]
        return np.ix_(*whole)


def masked(weights: Weights, pattern: Pattern) -> dict[str, NDArray[np.float32]]:
    """Full tensors with the rows of dropped units at zero, which is the model without them; statistics as they are.

    ``weights`` has personal tensors, too, where the layout has some.
    """
    rows = Selection.of_trained(pattern, "rows")
    result = {tensor.name: weights[tensor.name] for tensor in rows.layout.tensors}
    for tensor in rows.layout.parameters:
        result[tensor.name] = np.zeros_like(weights[tensor.name])
        result[tensor.name][rows.index(tensor)] = weights[tensor.name][rows.index(tensor)]
    return result


def kept_shape(tensor: Tensor, pattern: Pattern) -> tuple[int, ...]:
    """The shape of what ``pattern`` keeps of ``tensor`` in ``units`` mode."""
    return _shape(tensor.axes("units"), pattern)


def _shape(axes: tuple[Axis, ...], pattern: Pattern) -> tuple[int, ...]:
    return tuple(sum(segment.length(pattern.counts) for segment in axis) for axis in axes)


def kept_entries(tensor: Tensor, pattern: Pattern, full: NDArray[_Entry], *, first: int = 0) -> NDArray[_Entry]:
    """What ``pattern`` keeps, in ``units`` mode, of an array whose axes from ``first`` on are those of ``tensor``."""
    for axis, indices in enumerate(kept_axes(tensor, pattern, "units"), start=first):
        full = full if indices is None else full.take(indices, axis=axis)
    return full


def kept_axes(tensor: Tensor, pattern: Pattern, mode: Mode) -> tuple[Kept, ...]:
    """What ``pattern`` keeps of each axis of ``tensor``."""
    return tuple(_indices(axis, pattern) for axis in tensor.axes(mode))


def _indices(axis: Axis, pattern: Pattern) -> Kept:
    sizes = pattern.layout.sizes
    if all(s.block is None or pattern.counts[s.block] == sizes[s.block] for s in axis):
        return None
    if len(axis) == 1 and axis[0].block is not None and axis[0].outer == axis[0].inner == 1:
        return pattern.kept[axis[0].block]
    parts, start = [], 0
    for segment in axis:
        length = segment.length(sizes)
        if segment.block is None:
            parts.append(np.arange(start, start + length))
        else:
            units = sizes[segment.block]
            grid = np.arange(length).reshape(segment.outer, units, segment.inner)
            parts.append(start + grid[:, pattern.kept[segment.block]].reshape(-1))
        start += length
    return np.concatenate(parts)
