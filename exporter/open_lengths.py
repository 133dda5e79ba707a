"""Lengths that stay open in a program: a symbol for each block's kept units, and one for the batch.

An axis is ``fixed + sum(factor * units)``. Symbols made of that say which axes agree. From lengths alone torch would
take two blocks of one size for one, and could not divide the axis of whole heads by the size of a head.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from edge_fl.core.errors import UnsupportedModelError
from edge_fl.core.layout import Axis

__all__ = ["BATCH", "FixedUnitsError", "Free", "Length", "blocks_in", "length_of", "open_dims", "stand_ins"]

_SYMBOL = re.compile(r"\bs\d+\b")


class FixedUnitsError(UnsupportedModelError):
    """What a forward pass does with its lengths cannot be traced while the units of some blocks are open.

    Attributes
    ----------
    blocks
        Their names.
    reason
        What torch said.
    """

    def __init__(self, blocks: tuple[str, ...], reason: str) -> None:
        super().__init__(
            f"The forward pass cannot be traced with fewer units of {', '.join(blocks)} ({reason}): leave these layers "
            "dense with 'edge_fl_dense'."
        )
        self.blocks, self.reason = blocks, reason


class Length(NamedTuple):
    """``fixed`` and the units of each block by a factor: of equal ones the lengths are equal, whatever is kept."""

    fixed: int
    factors: tuple[tuple[str, int], ...]

    def of(self, counts: Mapping[str, int]) -> int:
        """The length for ``counts`` kept units of each block."""
        return self.fixed + sum(factor * counts[block] for block, factor in self.factors)

    def times(self, number: int) -> "Length":
        """So many times as long."""
        return Length(number * self.fixed, tuple((block, number * factor) for block, factor in self.factors))


BATCH = Length(0, (("", 1),))
"""The batch axis; no block is called so."""

Free = Sequence[Mapping[int, Length]]
"""For each input the axes whose length stays open."""


def length_of(axis: Axis) -> Length:
    """How long ``axis`` is."""
    fixed, factors = 0, Counter[str]()
    for segment in axis:
        if segment.block is None:
            fixed += segment.outer * segment.inner
        else:
            factors[segment.block] += segment.outer * segment.inner
    return Length(fixed, tuple(sorted(factors.items())))


def stand_ins(example: Sequence[Tensor], free: Free) -> list[Tensor]:
    """Tensors without values of the example's shapes, of which only ``free`` axes have symbols."""
    environment = ShapeEnv()
    symbols = _symbols(environment, example, free)
    made = []
    with FakeTensorMode(shape_env=environment):
        for tensor, lengths in zip(example, free, strict=True):
            shape = [lengths[axis].of(symbols) if axis in lengths else n for axis, n in enumerate(tensor.shape)]
            made.append(torch.empty(shape, dtype=tensor.dtype))
    return made


def blocks_in(text: str, example: Sequence[Tensor], free: Free) -> tuple[str, ...]:
    """The blocks whose symbols ``text`` names, which torch says of tensors made by :func:`stand_ins`."""
    named = set(_SYMBOL.findall(text))
    symbols = _symbols(ShapeEnv(), example, free)
    return tuple(block for block, symbol in symbols.items() if block and str(symbol) in named)


def open_dims(free: Free) -> tuple[dict[int, Any], ...]:
    """The same for ``torch.export``: multiples of a block's units and more; of several blocks it finds out itself."""
    blocks = dict.fromkeys(block for lengths in free for length in lengths.values() for block, _ in length.factors)
    dims = {block: Dim(f"units_{number}" if block else "batch") for number, block in enumerate(blocks)}

    def dim(length: Length) -> Any:
        if len(length.factors) != 1:
            return Dim.AUTO
        ((block, factor),) = length.factors
        units = dims[block] if factor == 1 else factor * dims[block]
        return units + length.fixed if length.fixed else units

    return tuple({axis: dim(length) for axis, length in lengths.items()} for lengths in free)


def _symbols(environment: ShapeEnv, example: Sequence[Tensor], free: Free) -> dict[str, int]:
    """A symbol for each block and for the batch, called the same each time."""
    counts = _counts(example, free)
    return {block: _symbol(environment, block or "batch", hint) for block, hint in counts.items()}


def _counts(example: Sequence[Tensor], free: Free) -> dict[str, int]:
    """The units of each block in ``example``: every block is alone on some axis."""
    counts: dict[str, int] = {}
    for tensor, lengths in zip(example, free, strict=True):
        for axis, length in lengths.items():
            if len(length.factors) == 1:
                ((block, factor),) = length.factors
                counts[block] = (tensor.shape[axis] - length.fixed) // factor
    return counts


def _symbol(environment: ShapeEnv, name: str, hint: int) -> int:
    source = ConstantSource(name)
    symbol = environment.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
    return environment.create_symintnode(symbol, hint=hint, source=source)  # type: ignore[return-value]  # stands for one
