"""Dropping patterns: one bit a unit, and how patterns are drawn. What a pattern means for a tensor is in
``selection.py``; its bytes on the wire are in ``wire/masks.py``.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout
from edge_fl.core.randomness import Stream, draw_ahead

__all__ = [
    "Bitmask",
    "Origin",
    "Pattern",
    "Prefix",
    "Seeded",
    "draw_seeded",
    "kept_counts",
    "kept_units",
    "prefix_counts",
    "prefix_units",
]


@dataclass(frozen=True)
class Bitmask:
    """A pattern that only its bits describe."""


@dataclass(frozen=True)
class Prefix:
    """The first ``ceil(width * J_b / 1000)`` units of each block (ordered dropout)."""

    width: int


@dataclass(frozen=True)
class Seeded:
    """The units that the Philox stream ``key`` draws at dropout rate ``dropout`` (thousandths)."""

    key: int
    dropout: int


Origin = Bitmask | Prefix | Seeded


def kept_units(units: int, dropout: int) -> int:
    """S_b = floor((1 - p) * J_b + 0.5), in integers; ``dropout`` is p in thousandths."""
    return ((1000 - dropout) * units + 500) // 1000


def kept_counts(layout: Layout, dropout: int) -> dict[str, int]:
    """S_b of every block of ``layout`` by name; ``dropout`` in thousandths."""
    return {block.name: kept_units(block.size, dropout) for block in layout.blocks}


def prefix_units(units: int, width: int) -> int:
    """ceil(width * J_b) (FjORD section 3.1), in integers; ``width`` in thousandths."""
    return -(-width * units // 1000)


def prefix_counts(layout: Layout, width: int) -> dict[str, int]:
    """ceil(width * J_b) of every block of ``layout`` by name; ``width`` in thousandths."""
    return {block.name: prefix_units(block.size, width) for block in layout.blocks}


@dataclass(frozen=True, eq=False)
class Pattern:
    """Which units of each block are kept.

    ``mask`` is ``[J]`` bool over the blocks of ``layout`` in order; ``origin`` says how it can be told in fewer
    bytes than its bits. Two patterns are equal when their bits are. The class methods make those that a width or a seed
    tells.
    """

    layout: Layout
    mask: NDArray[np.bool_]
    origin: Origin = Bitmask()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pattern):
            return False
        told_alike = self.layout is other.layout and self.origin == other.origin != Bitmask()
        return told_alike or np.array_equal(self.mask, other.mask)

    def __hash__(self) -> int:
        return hash(self.mask.tobytes())

    @classmethod
    def full(cls, layout: Layout) -> "Pattern":
        """Keep every unit."""
        return cls.prefix(layout, 1000)

    @classmethod
    def prefix(cls, layout: Layout, width: int) -> "Pattern":
        """Keep the first units of each block; ``width`` in thousandths, 1 to 1000, or ConfigError is raised."""
        if not 1 <= width <= 1000:
            raise ConfigError(f"A pattern's width is 1 to 1000 thousandths, not {width}.")
        return _ToldPattern(layout, Prefix(width))

    @classmethod
    def prefix_of(cls, layout: Layout, width: int, blocks: Collection[str]) -> "Pattern":
        """Keep the first units of each of ``blocks``, and every unit of all others; ``width`` in thousandths."""
        pattern, others = cls.prefix(layout, width), [b.name for b in layout.blocks if b.name not in blocks]
        return pattern.filled(others) if others else pattern

    @classmethod
    def seeded(cls, layout: Layout, dropout: int, key: int) -> "Pattern":
        """Exactly S_b units of each block, drawn block by block from the stream ``key`` (Z_N^S of FedBIAD).

        ``dropout`` is in thousandths, 0 to 1000, or ConfigError is raised.
        """
        if not 0 <= dropout <= 1000:
            raise ConfigError(f"A pattern's dropout rate is 0 to 1000 thousandths, not {dropout}.")
        return _ToldPattern(layout, Seeded(key, dropout))

    @classmethod
    def within(cls, layout: Layout, width: int, kept: int, stream: Stream) -> "Pattern":
        """Draw ``ceil(kept * J_b)`` of the first ``ceil(width * J_b)`` units of each block; both in thousandths."""
        drawn = [stream.subset(prefix_units(b.size, width), prefix_units(b.size, kept)) for b in layout.blocks]
        return cls(layout, _bits(layout, drawn))

    @classmethod
    def highest(cls, layout: Layout, dropout: int, scores: NDArray[np.float64], stream: Stream) -> "Pattern":
        """Keep the S_b units of each block with the highest ``scores`` (``[J]``), ties broken by ``stream``."""
        kept, start = [], 0
        for block in layout.blocks:
            order = np.lexsort((stream.uint32(block.size), -scores[start : start + block.size]))
            kept.append(order[: kept_units(block.size, dropout)])
            start += block.size
        return cls(layout, _bits(layout, kept))

    def filled(self, blocks: Collection[str]) -> "Pattern":
        """The same with every unit of ``blocks``."""
        whole = [np.full(block.size, block.name in blocks) for block in self.layout.blocks]
        return Pattern(self.layout, self.mask | _joined(whole))

    @cached_property
    def kept(self) -> dict[str, NDArray[np.int64]]:
        """The indices of the kept units, ascending, by block."""
        kept, start = {}, 0
        for block in self.layout.blocks:
            kept[block.name] = np.flatnonzero(self.mask[start : start + block.size])
            start += block.size
        return kept

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many units are kept, by block."""
        return {name: len(indices) for name, indices in self.kept.items()}


class _ToldPattern(Pattern):
    """One that a width or a seed tells: its mask is made when first asked for.

    A coordinator checks an update by counts and shapes alone, and what keeps every unit needs no mask.
    """

    origin: Prefix | Seeded

    def __init__(self, layout: Layout, origin: Prefix | Seeded) -> None:
        vars(self).update(layout=layout, origin=origin)

    def __repr__(self) -> str:
        return f"Pattern(layout={self.layout!r}, origin={self.origin!r})"

    @cached_property
    def mask(self) -> NDArray[np.bool_]:  # in place of the field
        sizes, counts = self.layout.sizes, self.counts
        if isinstance(self.origin, Prefix):
            return _joined([np.arange(units) < counts[name] for name, units in sizes.items()])
        return self.drawn(Stream(self.origin.key))

    def drawn(self, stream: Stream) -> NDArray[np.bool_]:
        """The mask that the stream of the seed tells."""
        sizes, counts = self.layout.sizes, self.counts
        return _bits(self.layout, [stream.subset(units, counts[name]) for name, units in sizes.items()])

    @cached_property
    def counts(self) -> dict[str, int]:
        if isinstance(self.origin, Prefix):
            return prefix_counts(self.layout, self.origin.width)
        return kept_counts(self.layout, self.origin.dropout)


def draw_seeded(patterns: Iterable[Pattern]) -> None:
    """Make the masks of those of ``patterns`` that seeds tell, which else are drawn one by one when first asked for."""
    undrawn = [
        (pattern, Stream(pattern.origin.key))
        for pattern in patterns
        if isinstance(pattern, _ToldPattern) and isinstance(pattern.origin, Seeded) and "mask" not in vars(pattern)
    ]
    draw_ahead(stream for _, stream in undrawn)
    for pattern, stream in undrawn:
        vars(pattern)["mask"] = pattern.drawn(stream)


def _bits(layout: Layout, kept: list[NDArray[np.int64]]) -> NDArray[np.bool_]:
    parts = []
    for block, indices in zip(layout.blocks, kept, strict=True):
        part = np.zeros(block.size, dtype=np.bool_)
        part[indices] = True
        parts.append(part)
    return _joined(parts)


def _joined(parts: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.bool_)
