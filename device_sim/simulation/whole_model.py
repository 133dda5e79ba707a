"""A client's full tensors, beside the stack that trains what it keeps of them: on the host, or where the stack is."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge_fl.core.bundle import TENSOR
from edge_fl.core.selection import Kept, Selection
from edge_fl.training.local_model import LocalModel

__all__ = ["HostModel", "ResidentModel", "WholeModel", "whole_model"]


class WholeModel(Protocol):
    """Gives a stack what one client keeps, and takes it back.

    ``parts`` are the client's own in the stack, by ``tensor.NAME``, and ``slots`` by ``SLOT.NAME``.
    """

    def load(self, selection: Selection, parts: Mapping[str, Tensor], slots: Mapping[str, Tensor]) -> None:
        """Write the kept entries, and the optimiser's state of them, into the stack."""
        ...

    def put_back(self, selection: Selection, parts: Mapping[str, Tensor], slots: Mapping[str, Tensor]) -> None:
        """Take them from the stack again, which leaves them as they are until others are loaded, or for ever."""
        ...

    def finish(self) -> None:
        """Nothing is trained any more: what was learned belongs in the client's own model."""
        ...


def whole_model(full: LocalModel, device: torch.device) -> WholeModel:
    """``full`` for stacks on ``device``."""
    return HostModel(full) if device.type == "cpu" else ResidentModel(full, device)


class HostModel:
    """The client's own model itself, for stacks on the CPU."""

    def __init__(self, full: LocalModel) -> None:
        self._full = full

    def load(self, selection: Selection, parts: Mapping[str, Tensor], slots: Mapping[str, Tensor]) -> None:
        """As :class:`WholeModel`."""
        full = self._full.current
        for spec in selection.layout.tensors:
            selection.gather_into(spec, full[spec.name], _array(parts[f"{TENSOR}{spec.name}"]))
        fresh = {name: np.zeros(tuple(part.shape), dtype=np.float32) for name, part in slots.items()}
        for name, kept in self._full.gather_slots(selection, fresh).items():
            _array(slots[name])[...] = kept

    def put_back(self, selection: Selection, parts: Mapping[str, Tensor], slots: Mapping[str, Tensor]) -> None:
        """As :class:`WholeModel`."""
        kept = {name.removeprefix(TENSOR): _array(part) for name, part in parts.items()}
        self._full.put_back(selection, kept, {name: _array(part) for name, part in slots.items()})

    def finish(self) -> None:
        """Nothing to do."""


class ResidentModel:
    """A copy of the client's model on an accelerator: a pattern that moves at every step costs no transfer.

    Parameters
    ----------
    full
        Copied, and brought up to date by :meth:`finish`.
    device
        Where the stacks are.
    """

    def __init__(self, full: LocalModel, device: torch.device) -> None:
        self._full, self._device = full, device
        self._weights = {name: _copied(array, device) for name, array in full.weights.items()}
        self._slots = {name: _copied(array, device) for name, array in full.slots.items()}

    def load(self, selection: Selection, parts: Mapping[str, Tensor], slots: Mapping[str, Tensor]) -> None:
        """As :class:`WholeModel`."""
        picks = self._picks(selection)
        for name, pick in picks.items():
            parts[f"{TENSOR}{name}"].copy_(_taken(self._weights[name], pick))
        for slot, part in slots.items():
            held = self._slots.get(slot)
            part.zero_() if held is None else part.copy_(_taken(held, picks[slot.partition(".")[2]]))

    def put_back(self, selection: Selection, parts: Mapping[str, Tensor], slots: Mapping[str, Tensor]) -> None:
        """As :class:`WholeModel`."""
        picks = self._picks(selection)
        for name, pick in picks.items():
            _put(self._weights[name], pick, parts[f"{TENSOR}{name}"])
        for slot, part in slots.items():
            name = slot.partition(".")[2]
            if slot not in self._slots:
                self._slots[slot] = torch.zeros_like(self._weights[name])
            _put(self._slots[slot], picks[name], part)

    def finish(self) -> None:
        """Bring the client's own model up to date."""
        for name, tensor in self._weights.items():
            torch.from_numpy(self._full.weights[name]).copy_(tensor)
        self._full.slots.update({name: tensor.cpu().numpy() for name, tensor in self._slots.items()})

    def _picks(self, selection: Selection) -> dict[str, tuple["_Pick", ...]]:
        return {name: tuple(_pick(kept, self._device) for kept in axes) for name, axes in selection.axes.items()}


_Pick = slice | Tensor
"""What is kept of an axis: neighbours, which are a view, or indices, which are not."""


def _pick(kept: Kept, device: torch.device) -> _Pick:
    if kept is None:
        return slice(None)
    if len(kept) == 0 or kept[-1] - kept[0] + 1 == len(kept):  # ascending, so these are neighbours
        start = int(kept[0]) if len(kept) else 0
        return slice(start, start + len(kept))
    return torch.from_numpy(kept).to(device)


def _taken(full: Tensor, picks: Sequence[_Pick]) -> Tensor:
    for axis, pick in enumerate(picks):
        if isinstance(pick, Tensor):
            full = full.index_select(axis, pick)
    return full[tuple(pick if isinstance(pick, slice) else slice(None) for pick in picks)]


def _put(full: Tensor, picks: Sequence[_Pick], kept: Tensor) -> None:
    """Write ``kept`` over what ``picks`` say of ``full``, an indexed axis after another."""
    view = full[tuple(pick if isinstance(pick, slice) else slice(None) for pick in picks)]
    indexed = [axis for axis, pick in enumerate(picks) if isinstance(pick, Tensor)]
    if not indexed:
        view.copy_(kept)
        return
    axis, *others = indexed
    if others:
        inner = view.index_select(axis, picks[axis])  # type: ignore[arg-type]
        _put(inner, [picks[other] if other in others else slice(None) for other in range(len(picks))], kept)
        kept = inner
    view.index_copy_(axis, picks[axis], kept)  # type: ignore[arg-type]


def _array(part: Tensor) -> NDArray[np.float32]:
    """A tensor of the CPU as the array that it is."""
    array: NDArray[np.float32] = part.numpy()
    return array


def _copied(array: NDArray[np.float32], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, copy=True)
