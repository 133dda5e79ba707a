"""The full model on a device while it trains: its tensors, and the optimiser's state of each of their entries."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Tensor
from edge_fl.core.selection import Selection, Weights

__all__ = ["Change", "LocalModel"]


class Change(NamedTuple):
    """By how much weights changed: of all that was ``trained``, full or the kept entries, and of what is ``uploaded``.

    Arrays of the two may be the same.
    """

    trained: dict[str, NDArray[np.float32]]
    uploaded: dict[str, NDArray[np.float32]]


class LocalModel:
    """Full tensors, from which kept entries are taken and to which they return.

    A row that is dropped keeps its values, and what the optimiser remembers of it, until it is kept again.

    Most clients train one selection from the first step to the last. Of those the full tensors are never copied: what
    they trained is held as it was put back.

    Parameters
    ----------
    start
        The weights that training starts from; not written to.
    slots
        Full-size state by ``SLOT.TENSOR`` that does not start fresh, such as ``log_alpha.TENSOR`` (variational
        dropout); copied.
    """

    def __init__(self, start: Weights, slots: Weights | None = None) -> None:
        self._start = start
        self._full: dict[str, NDArray[np.float32]] | None = None
        self._trained: tuple[Selection, Weights] | None = None  # put back, and not in the full tensors yet
        self.slots = _copied(slots or {})

    @property
    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The full tensors, which may be written to."""
        if self._full is None:
            self._full = _copied(self._start)
        if self._trained is not None:
            selection, kept = self._trained
            selection.scatter(kept, self._full)
            self._trained = None
        return self._full

    @property
    def current(self) -> Weights:
        """The full tensors, to be read before others are put back: without a copy, where nothing was put back yet."""
        return self.weights if self._full is not None or self._trained is not None else self._start

    def gather_slots(self, selection: Selection, fresh: Weights) -> dict[str, NDArray[np.float32]]:
        """The optimiser's state of the kept entries, ``fresh`` (by ``SLOT.TENSOR``) where there is none yet."""
        return {
            slot: self.slots[slot][selection.index(tensor)] if slot in self.slots else fresh[slot]
            for slot, tensor in _slots(selection, fresh)
        }

    def put_back(self, selection: Selection, kept: Weights, slots: Weights) -> None:
        """Write kept entries and their optimiser's state back.

        ``kept`` stays as it is until others are taken or put back, or the change is taken: it may be read only then.
        """
        if self._full is None and self._trained is None:
            self._trained = selection, kept
        else:
            selection.scatter(kept, self.weights)
        for slot, tensor in _slots(selection, slots):
            full = self.slots.setdefault(slot, np.zeros(tensor.shape, dtype=np.float32))
            full[selection.index(tensor)] = slots[slot]

    def take_change(self, uploaded: Selection) -> Change:
        """By how much the weights differ from those at the start; there are no weights here after that."""
        if self._trained is not None and self._trained[0].pattern == uploaded.pattern:
            selection, kept = self._trained
            change = selection.gather(self._start)
            for name, before in change.items():
                np.subtract(kept[name], before, out=before)
            sent = uploaded.widened(change, selection)
        else:
            change = self.weights
            for name, tensor in change.items():  # another array would be a pass over cold memory
                np.subtract(tensor, self._start[name], out=tensor)
            sent = uploaded.gather(change)
        self._start, self._full, self._trained = {}, None, None
        return Change(change, sent)


def _copied(tensors: Weights) -> dict[str, NDArray[np.float32]]:
    return {name: np.array(tensor, dtype=np.float32) for name, tensor in tensors.items()}


def _slots(selection: Selection, slots: Weights) -> Iterator[tuple[str, Tensor]]:
    for slot in slots:
        yield slot, selection.layout.tensor(slot.partition(".")[2])
