"""The full model on a device while it trains: its tensors, and the optimiser's state of each of their entries."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Tensor
from edge_fl.core.selection import Selection, Weights

__all__ = ["LocalModel"]


class LocalModel:
    """Full tensors, from which kept entries are taken and to which they return.

    A row that is dropped keeps its values, and what the optimiser remembers of it, until it is kept again.

    Parameters
    ----------
    weights
        Copied.
    slots
        Full-size state by ``SLOT.TENSOR`` that does not start fresh, such as ``log_alpha.TENSOR`` (variational
        dropout); copied.
    """

    def __init__(self, weights: Weights, slots: Weights | None = None) -> None:
        self.weights = _copied(weights)
        self.slots = _copied(slots or {})

    def gather_slots(self, selection: Selection, fresh: Weights) -> dict[str, NDArray[np.float32]]:
        """The optimiser's state of the kept entries, ``fresh`` (by ``SLOT.TENSOR``) where there is none yet."""
        return {
            slot: self.slots[slot][selection.index(tensor)] if slot in self.slots else fresh[slot]
            for slot, tensor in _slots(selection, fresh)
        }

    def put_back(self, selection: Selection, kept: Weights, slots: Weights) -> None:
        """Write kept entries and their optimiser's state back."""
        selection.scatter(kept, self.weights)
        for slot, tensor in _slots(selection, slots):
            full = self.slots.setdefault(slot, np.zeros(tensor.shape, dtype=np.float32))
            full[selection.index(tensor)] = slots[slot]

    def take_change(self, before: Weights) -> dict[str, NDArray[np.float32]]:
        """By how much the weights differ from those ``before``; there are no weights here after that.

        The difference lies where the weights lay: another array would be a pass over cold memory.
        """
        change, self.weights = self.weights, {}
        for name, tensor in change.items():
            np.subtract(tensor, before[name], out=tensor)
        return change


def _copied(tensors: Weights) -> dict[str, NDArray[np.float32]]:
    return {name: np.array(tensor, dtype=np.float32) for name, tensor in tensors.items()}


def _slots(selection: Selection, slots: Weights) -> Iterator[tuple[str, Tensor]]:
    for slot in slots:
        yield slot, selection.layout.tensor(slot.partition(".")[2])
