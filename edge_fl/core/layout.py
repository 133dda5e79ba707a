"""Blocks and axes: which droppable units the axes of each tensor belong to.

A *block* is a set of J droppable units. An axis of a tensor is a list of *segments*; in a segment of block b,
unit j owns the indices ``start + (o * J_b + j) * inner + i`` for every ``o < outer`` and ``i < inner``. That
table is all that masking, widths and compact execution need. Nothing here knows a model or a method.
"""

import hashlib
import math
from functools import cached_property
from typing import Literal

import msgspec

from edge_fl.core.errors import BundleError

__all__ = ["MOST_ENTRIES", "Axis", "Block", "DType", "Layout", "Mode", "Segment", "Tensor"]

MOST_ENTRIES = 1 << 31
"""The most numbers of a model, or of one sample: 8 GiB in float32."""

_MOST_PARTS = 1 << 16  # blocks, tensors, axes of a tensor, segments of an axis

DType = Literal["float32", "float16", "int64", "int32", "int8", "uint8", "bool"]

Mode = Literal["rows", "units"]
"""``rows``: each matrix row by itself (FedBIAD). ``units``: a unit's row and the next layer's column together."""


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A set of ``size`` droppable units (J_b), named after the layer whose rows they are.

    ``recurrent`` ones are read by their own layer in the next time step: some methods leave those whole.
    """

    name: str
    size: int
    recurrent: bool = False


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stretch of an axis: ``outer * J * inner`` indices of ``block``, or ``outer * inner`` free ones (None)."""

    block: str | None
    outer: int = 1
    inner: int = 1

    def length(self, sizes: dict[str, int]) -> int:
        """How many indices the segment spans, given the units of each block."""
        return self.outer * self.inner * (1 if self.block is None else sizes[self.block])


Axis = tuple[Segment, ...]


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of the model: full shape, and the segments of each axis in the two modes.

    ``units`` names every axis that shrinks when a unit is left out; ``rows`` only those of the unit's own row.
    A ``statistic`` (a BatchNorm buffer, ``[C]``) is carried in frames and never compressed; one of each width is
    ``[W, C]`` (:mod:`edge_fl.core.width_statistics`). A ``frozen`` tensor is read and never trained, so it has no rows
    of a unit; it alone may be of another dtype than float32.
    """

    name: str
    shape: tuple[int, ...]
    rows: tuple[Axis, ...]
    units: tuple[Axis, ...]
    dtype: DType = "float32"
    role: Literal["parameter", "statistic", "frozen"] = "parameter"

    def axes(self, mode: Mode) -> tuple[Axis, ...]:
        """The segments of each axis in ``mode``."""
        return self.rows if mode == "rows" else self.units

    @property
    def whole(self) -> bool:
        """Whether no pattern leaves out a part of it."""
        return _is_free(self.units)

    @property
    def per_width(self) -> bool:
        """Whether its first axis has a row for each of several widths."""
        return self.role == "statistic" and len(self.shape) > 1

    @property
    def size(self) -> int:
        """How many numbers the full tensor holds."""
        return math.prod(self.shape)

    @property
    def matrix(self) -> tuple[int, int]:
        """Its shape ``[R, S]`` as a matrix: the first axis against all others. A vector is one row."""
        first, *rest = self.shape if len(self.shape) > 1 else (1, *self.shape)
        return first, math.prod(rest)


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, omit_defaults=True):
    """Every block and tensor of one model, in the order in which frames and programs carry them.

    ``frozen`` and ``personal`` tensors are in no frame. Programs read the former from the bundle. The latter are
    trained and never leave a device, which starts from the bundle's (:mod:`edge_fl.core.frozen`).
    """

    blocks: tuple[Block, ...]
    tensors: tuple[Tensor, ...]
    frozen: tuple[Tensor, ...] = ()
    personal: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        held = (*self.tensors, *self.frozen, *self.personal)
        _require(max(len(self.blocks), len(held)) <= _MOST_PARTS, "it has too many blocks or tensors")
        names = [block.name for block in self.blocks]
        _require(len(set(names)) == len(names), "two blocks have one name")
        _require(all(block.size > 0 for block in self.blocks), "a block has no unit")
        units = sum(block.size for block in self.blocks)
        _require(units <= MOST_ENTRIES, f"it has {units} units, and {MOST_ENTRIES} is the most")
        _require(len({tensor.name for tensor in held}) == len(held), "two tensors have one name")
        for tensor in held:
            for axes in (tensor.rows, tensor.units):
                self._check(tensor, axes)
            _require(all(length > 0 for length in tensor.shape), f"tensor '{tensor.name}' has an empty axis")
        for tensor in (*self.tensors, *self.personal):
            fits = tensor.role != "frozen" and tensor.dtype == "float32"
            _require(fits, f"tensor '{tensor.name}' is trained, and frozen or not of float32")
        for tensor in self.frozen:
            free = _is_free(tensor.rows)
            _require(
                tensor.role == "frozen" and free, f"tensor '{tensor.name}' is not frozen, or has rows of units"
            )
        entries = sum(tensor.size for tensor in held)
        _require(entries <= MOST_ENTRIES, f"it has {entries} numbers, and {MOST_ENTRIES} is the most")

    def _check(self, tensor: Tensor, axes: tuple[Axis, ...]) -> None:
        _require(len(axes) == len(tensor.shape), f"tensor '{tensor.name}' has axes for another rank")
        _require(sum(map(len, axes)) <= _MOST_PARTS, f"tensor '{tensor.name}' has too many segments")
        for length, axis in zip(tensor.shape, axes, strict=True):
            unknown = [s.block for s in axis if s.block is not None and s.block not in self.sizes]
            _require(not unknown, f"tensor '{tensor.name}' names the unknown block {unknown}")
            empty = any(s.outer < 1 or s.inner < 1 for s in axis)
            _require(not empty, f"tensor '{tensor.name}' has an empty segment")
            total = sum(segment.length(self.sizes) for segment in axis)
            _require(total == length, f"tensor '{tensor.name}' has an axis of {length} described as {total}")

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Units of each block (J_b) by name."""
        return {block.name: block.size for block in self.blocks}

    @cached_property
    def recurrent(self) -> frozenset[str]:
        """The names of the recurrent blocks."""
        return frozenset(block.name for block in self.blocks if block.recurrent)

    @cached_property
    def units(self) -> int:
        """Units of all blocks together (J)."""
        return sum(block.size for block in self.blocks)

    @cached_property
    def parameters(self) -> tuple[Tensor, ...]:
        """Those of ``tensors`` that are trained, in order: without personal ones."""
        return tuple(tensor for tensor in self.tensors if tensor.role == "parameter")

    @cached_property
    def statistics(self) -> tuple[Tensor, ...]:
        """Those of ``tensors`` that are BatchNorm's running means and variances, in order: without personal ones."""
        return tuple(tensor for tensor in self.tensors if tensor.role == "statistic")

    @cached_property
    def trained(self) -> "Layout":
        """As one device trains it: personal tensors come last among the others."""
        if not self.personal:
            return self
        return msgspec.structs.replace(self, tensors=(*self.tensors, *self.personal), personal=())

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def size(self) -> int:
        """Numbers in a frame of the full model: all but frozen and personal ones."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def digest(self) -> str:
        """16 hex digits that two ends compare before they exchange rows."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]


def _is_free(axes: tuple[Axis, ...]) -> bool:
    return all(segment.block is None for axis in axes for segment in axis)


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise BundleError(f"The layout makes no sense: {sentence}.")
