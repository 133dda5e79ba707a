"""Aggregation: sums over updates in float64, and the rules that make a change of the model of them.

Written once against the array API, for numpy and for torch on CUDA: the caller brings what sums.
Updates must be added in an order of the caller's choosing that does not depend on arrival.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_fl.aggregation.bounds import WHOLE, Clip
from edge_fl.aggregation.part import Part
from edge_fl.aggregation.sums import Addend, Summing, as_matrix, matrix_kept
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.pattern import draw_seeded
from edge_fl.core.selection import Kept, Selection, Weights
from edge_fl.core.server_half import Change, Weighting

__all__ = ["RULES", "Accumulator", "Rule", "find_rule", "fixed_mean", "held_rows", "rule_names"]

_TOGETHER = 8  # updates that wait to be added at once: the sums are then read and written so much less often
_WAITING_BYTES = 1 << 29  # that they may have by then, unless a single one has more


def _mean(xp: Any, old: Any, total: Any, held: Any, weight: float) -> Any:
    """``sum w (U_k - U) / sum w``: an entry that a client does not send counts as unchanged.

    With dense updates this is FedAvg; with patterns it is ``sum |D_k| beta (U_k - U) / sum |D_k|``.
    """
    del xp, old, held
    total /= weight
    return total


def _holders(xp: Any, old: Any, total: Any, held: Any, weight: float) -> Any:
    """The mean over the clients that hold an entry; one that nobody holds keeps its value (FjORD eq. (2))."""
    del old, weight
    total /= xp.where(held > 0, held, 1.0)  # where nobody holds an entry, its sum is 0
    return total


def _vote(xp: Any, old: Any, total: Any, held: Any, weight: float) -> Any:
    """The sign that most clients send (Bernstein et al. 2018, Algorithm 3); 0 where as many send the other."""
    del old, held, weight
    return xp.sign(total)


def _zeros(xp: Any, old: Any, total: Any, held: Any, weight: float) -> Any:
    """FedBIAD eq. (10) to the letter: a dropped entry counts as zero."""
    del xp
    return (total + held * old) / weight - old


@dataclass(frozen=True)
class Rule:
    """What change comes of the sums, entry by entry, and what each client counts in them.

    ``combine`` takes the namespace, the old weights (float32), the sum of weighted differences (float64; it may write
    to it), the summed weights of those who hold an entry, and those of all. ``signs`` says that of a parameter's
    differences only the signs count, whatever size a client gives them. ``products`` says that low-rank adapters are
    averaged as what they add to their layers (:mod:`edge_fl.aggregation.products`), and only all else entry by entry.
    """

    combine: Callable[[Any, Any, Any, Any, float], Any]
    weighting: Weighting = "samples"
    signs: bool = False
    products: bool = False

    def combine_of(self, tensor: Tensor) -> Callable[[Any, Any, Any, Any, float], Any]:
        """``combine``, or for statistics, whatever the rule, the mean over those who hold them."""
        return self.combine if tensor.role == "parameter" else _holders

    def weight(self, samples: int) -> int:
        """What an update of so many samples counts."""
        return 1 if self.weighting == "clients" else samples

    def entries(self, tensor: Tensor, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """What of an update's kept differences of ``tensor`` is summed."""
        return np.sign(values) if self.signs and tensor.role == "parameter" else values


RULES: dict[str, Rule] = {
    "mean": Rule(_mean),
    "holders": Rule(_holders),
    "zeros": Rule(_zeros),
    "vote": Rule(_vote, signs=True),
    "products": Rule(_holders, products=True),
}
"""By name, each weighted by samples."""


def rule_names() -> list[str]:
    """The rules by name."""
    return sorted(RULES)


def find_rule(name: str, weighting: Weighting = "samples") -> Rule:
    """The rule of that name, so weighted; raises ConfigError when there is none."""
    if name not in RULES:
        raise ConfigError(f"There is no aggregation rule '{name}'; there are {', '.join(rule_names())}.")
    return replace(RULES[name], weighting=weighting)


def fixed_mean(clients: int) -> Rule:
    """The sum of differences over a fixed number of ``clients``: no weight depends on who answers, or holds what."""

    def combine(xp: Any, old: Any, total: Any, held: Any, weight: float) -> Any:
        del xp, old, held, weight
        total /= clients
        return total

    return Rule(combine, "clients")


class _Waiting(NamedTuple):
    """An update that is yet to be added, of ``size`` bytes."""

    part: Part
    values: Weights
    size: int


class Accumulator:
    """Running float64 sums of one round's updates.

    Parameters
    ----------
    layout
        The model's.
    rule
        What is made of the sums.
    summing
        What makes them, and where.

    Notes
    -----
    Statistics become the mean over those who hold them, whatever the rule. Of those that BatchNorm has for each width
    a client holds the rows that its update changes, for a step of training changes its own row and leaves the others
    bit for bit: clients that never train a width do not hold its statistics back.
    """

    averaged = 0
    """Rows with too few holders for a robust rule: there is none."""

    def __init__(self, layout: Layout, rule: Rule, summing: Summing) -> None:
        self._layout, self._rule, self._summing = layout, rule, summing
        self._total = {tensor.name: self._summing.zeros(tensor.matrix) for tensor in layout.tensors}
        self._waiting: list[_Waiting] = []
        self._held: dict[str, list[tuple[Kept, Kept]]] = {tensor.name: [] for tensor in layout.tensors}
        self._weights: list[float] = []

    def add(
        self,
        selection: Selection,
        values: Weights,
        samples: int,
        discount: float = 1,
        *,
        clip: Clip = WHOLE,
        times: float = 1,
    ) -> None:
        """Add one update: the kept differences ``values`` under ``selection``, weighted by ``samples`` or 1.

        It counts only for the share ``discount`` of that; for the rest as one that changes nothing. So does what
        ``clip`` leaves out. It counts ``times`` as often as others.

        Nothing may be written to ``values`` any more: a few updates wait for each other.
        """
        size = sum(kept.nbytes for kept in values.values())
        if len(self._waiting) == _TOGETHER or sum(each.size for each in self._waiting) + size > _WAITING_BYTES:
            self._add_up()
        part = Part(selection, samples, times * self._rule.weight(samples), discount, clip)
        self._waiting.append(_Waiting(part, values, size))

    def change(self, weights: Weights) -> Change:
        """By how much ``weights`` are to change, statistics too: the rule applied to them and to the sums.

        It takes the place of the sums: it can be had once, and nothing be added after it. Without an update, as a
        private round may be, nothing changes.
        """
        self._add_up()
        if not self._weights:
            return {tensor.name: np.zeros(tensor.shape) for tensor in self._layout.tensors}
        return {tensor.name: self._changed(tensor, weights[tensor.name]) for tensor in self._layout.tensors}

    def _add_up(self) -> None:
        draw_seeded(each.part.selection.pattern for each in self._waiting)
        for tensor in self._layout.tensors:
            addends = [self._addend(tensor, each) for each in self._waiting]
            self._summing.add(self._total[tensor.name], addends)
            self._held[tensor.name] += [
                (held_rows(tensor, each.values, each.rows), each.columns) for each in addends
            ]
        self._weights += [each.part.weight for each in self._waiting]
        self._waiting.clear()

    def _addend(self, tensor: Tensor, waiting: "_Waiting") -> Addend:
        part = waiting.part
        rows, columns = matrix_kept(tensor, part.selection.axes[tensor.name])
        entries = self._rule.entries(tensor, as_matrix(waiting.values[tensor.name]))
        return Addend(entries, rows, columns, part.share(tensor) * part.weight)

    def _changed(self, tensor: Tensor, weights: NDArray[np.float32]) -> NDArray[np.float64]:
        combine = self._rule.combine_of(tensor)
        total, old, (rows, columns) = self._total[tensor.name], as_matrix(weights), self._holding(tensor)
        everyone = float(sum(self._weights))
        for block in self._summing.blocks(total):
            held = self._summing.product(rows[:, block] if rows.shape[1] > 1 else rows, columns)
            before = self._summing.array(old[block])
            total[block] = combine(self._summing.xp, before, total[block], held, everyone)
        return np.asarray(total.cpu() if hasattr(total, "cpu") else total).reshape(tensor.shape)

    def _holding(self, tensor: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """``[K, R]`` and ``[K, S]``, whose product is the summed weights of those who hold each entry: what each of K
        clients counts in the rows that it holds, and 1 for its columns. Either is ``[K, 1]`` where all hold all.
        """
        each = zip(zip(*self._held[tensor.name], strict=True), tensor.matrix, strict=True)
        rows, columns = (_masks(kept, n) for kept, n in each)
        return rows * np.array(self._weights, dtype=np.float64)[:, np.newaxis], columns


def held_rows(tensor: Tensor, entries: NDArray[np.float32], rows: Kept) -> Kept:
    """The rows that an update holds: of statistics that BatchNorm has for each width, those that it changes."""
    return np.flatnonzero(entries.any(axis=1)) if tensor.per_width else rows


def _masks(each: Sequence[Kept], n: int) -> NDArray[np.float64]:
    """1 for what each of K updates holds of n indices: ``[K, n]``, or ``[K, 1]`` where all hold all."""
    if all(kept is None for kept in each):
        return np.ones((len(each), 1))
    masks = np.zeros((len(each), n))
    for mask, kept in zip(masks, each, strict=True):
        mask[slice(None) if kept is None else kept] = 1.0
    return masks
