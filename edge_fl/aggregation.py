"""Aggregation: sums over updates in float64, and the rules that make a change of the model of them.

Written once against the array API, for numpy and for torch on CPU or CUDA: the caller brings the namespace.
Updates must be added in an order of the caller's choosing that does not depend on arrival.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.errors import ConfigError
from edge_fl.layout import Layout, Tensor
from edge_fl.selection import Index, Selection, Weights
from edge_fl.server_half import Change

__all__ = ["RULES", "Accumulator", "Rule", "find_rule", "rule_names"]


def _mean(xp: Any, old: Any, total: Any, held: Any, weight: float) -> Any:
    """``sum w (U_k - U) / sum w``: an entry that a client does not send counts as unchanged.

    With dense updates this is FedAvg; with patterns it is ``sum |D_k| beta (U_k - U) / sum |D_k|``, the ``delta`` rule.
    """
    del xp, old, held
    return total / weight


def _holders(xp: Any, old: Any, total: Any, held: Any, weight: float) -> Any:
    """The mean over the clients that hold an entry; one that nobody holds keeps its value (FjORD eq. (2))."""
    del old, weight
    return xp.where(held > 0, total / xp.where(held > 0, held, 1.0), 0.0)


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

    ``combine`` takes the namespace, the old weights, the sum of weighted differences, the summed weights of those
    who hold an entry, and those of all. ``equally`` says that a client's weight is 1, not its number of samples;
    ``signs``, that of a parameter's differences only the signs count, whatever size a client gives them.
    """

    combine: Callable[[Any, Any, Any, Any, float], Any]
    equally: bool = False
    signs: bool = False


RULES: dict[str, Rule] = {
    "mean": Rule(_mean),
    "delta": Rule(_mean),
    "holders": Rule(_holders),
    "count": Rule(_holders, equally=True),  # HeteroFL
    "equal": Rule(_mean, equally=True),  # variational dropout
    "vote": Rule(_vote, equally=True, signs=True),  # signSGD
    "zeros": Rule(_zeros),
}


def rule_names() -> list[str]:
    """The rules by name."""
    return sorted(RULES)


def find_rule(name: str) -> Rule:
    """The rule of that name; raises ConfigError when there is none."""
    if name not in RULES:
        raise ConfigError(f"There is no aggregation rule '{name}'; there are {', '.join(rule_names())}.")
    return RULES[name]


class Accumulator:
    """Running float64 sums of one round's updates.

    Parameters
    ----------
    layout
        The model's.
    xp
        An array API namespace (``array_api_compat.numpy`` or ``array_api_compat.torch``).
    device
        Where the sums live, as ``xp`` names devices.
    rule
        What is made of the sums.

    Notes
    -----
    Statistics become the mean over those who hold them, whatever the rule. Of those that BatchNorm has for each width
    a client holds the rows that its update changes, for a step of training changes its own row and leaves the others
    bit for bit: clients that never train a width do not hold its statistics back.
    """

    def __init__(self, layout: Layout, *, xp: Any, device: Any, rule: Rule) -> None:
        self._layout, self._xp, self._device, self._rule = layout, xp, device, rule
        self._total = {t.name: xp.zeros(t.shape, dtype=xp.float64, device=device) for t in layout.tensors}
        self._held = {t.name: xp.zeros(_held_shape(t), dtype=xp.float64, device=device) for t in layout.tensors}
        self._weight = 0.0

    def add(self, selection: Selection, values: Weights, samples: int) -> None:
        """Add one update: the kept differences ``values`` under ``selection``, weighted by ``samples`` or 1."""
        xp, weight = self._xp, 1 if self._rule.equally else samples
        for tensor in self._layout.tensors:
            index = self._on_device(selection.index(tensor))
            moved = xp.asarray(np.array(values[tensor.name], dtype=np.float64), device=self._device)
            if self._rule.signs and tensor.role == "parameter":
                moved = xp.sign(moved)
            moved *= weight
            _add(self._total[tensor.name], index, moved)
            held = _held_index(tensor, selection, values[tensor.name])
            _add(self._held[tensor.name], self._on_device(held), weight)
        self._weight += weight

    def change(self, weights: Weights) -> Change:
        """By how much ``weights`` are to change, statistics too: the rule applied to them and to the sums."""
        xp, changes = self._xp, {}
        for tensor in self._layout.tensors:
            old = xp.astype(xp.asarray(np.array(weights[tensor.name]), device=self._device), xp.float64)
            combine = self._rule.combine if tensor.role == "parameter" else _holders
            result = combine(xp, old, self._total[tensor.name], self._held[tensor.name], self._weight)
            changes[tensor.name] = np.asarray(result.cpu() if hasattr(result, "cpu") else result)
        return changes

    def _on_device(self, index: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(i if isinstance(i, slice) else self._xp.asarray(i, device=self._device) for i in index)


def _add(total: Any, index: tuple[Any, ...], moved: Any) -> None:
    if all(isinstance(i, slice) for i in index):
        part = total[index]
        part += moved  # a view: `total[index] += moved` would write it once more
    else:
        total[index] += moved


def _held_shape(tensor: Tensor) -> tuple[int, ...]:
    """Axes that no block narrows need one count for all their indices, but for the rows of widths."""
    shape = [
        n if any(s.block is not None for s in axis) else 1
        for n, axis in zip(tensor.shape, tensor.units, strict=True)
    ]
    return (tensor.shape[0], *shape[1:]) if tensor.per_width else tuple(shape)


def _held_index(tensor: Tensor, selection: Selection, values: NDArray[np.float32]) -> Index:
    axes = list(selection.axes[tensor.name])
    if tensor.per_width:
        axes[0] = np.flatnonzero(values.any(axis=tuple(range(1, values.ndim))))
    elif sum(kept is not None for kept in axes) <= 1:
        return selection.index(tensor)
    shape = _held_shape(tensor)
    return np.ix_(*(np.arange(n) if kept is None else kept for n, kept in zip(shape, axes, strict=True)))
