"""Initial and last states of layers whose numbers of units may differ."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from edge_fl.core.errors import UnsupportedModelError

__all__ = ["LayerStates", "initial_states"]


class LayerStates(Sequence[Tensor]):
    """The last states of all layers, ``[B, H]`` each, which act as torch's stacked ``[layers, B, H]``.

    A layer's own state is had by its index, whatever units the others keep. Anything else stacks them, and raises
    UnsupportedModelError where their numbers of units differ.
    """

    def __init__(self, states: Sequence[Tensor]) -> None:
        self._states = tuple(states)

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._states)

    def __getitem__(self, index: Any) -> Any:
        first, *rest = index if isinstance(index, tuple) and index else (index,)
        if isinstance(first, int) and not isinstance(first, bool):  # True makes an axis
            return self._states[first][tuple(rest)] if rest else self._states[first]
        return self.stacked()[index]

    def stacked(self) -> Tensor:
        """One tensor of all layers."""
        units = [state.shape[-1] for state in self._states]
        if any(count != units[0] for count in units):
            raise UnsupportedModelError(
                f"The model's forward joins the last states of recurrent layers that keep {units} units: take each "
                "layer's by its index (h_n[-1]), as layers drop units of their own."
            )
        return torch.stack(self._states)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.stacked(), name)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Stack wherever a tensor is asked for."""
        return func(*_stacked(args), **_stacked(dict(kwargs or {})))


def _stacked(value: Any) -> Any:
    match value:
        case LayerStates():
            return value.stacked()
        case tuple() | list():
            return type(value)(_stacked(item) for item in value)
        case dict():
            return {key: _stacked(item) for key, item in value.items()}
    return value


def initial_states(given: Tensor | Sequence[Tensor] | None, weights: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """One state ``[B, H]`` a layer: ``given`` ``[layers, B, H]``, or zeros.

    Parameters
    ----------
    weights
        Each layer's recurrent weight, whose last axis is its units.
    x
        ``[..., B, features]``, which gives the batch.

    Raises
    ------
    UnsupportedModelError
        When a state is given for other units than a layer keeps.
    """
    if given is None:
        return [x.new_zeros(x.shape[-2], weight.shape[-1]) for weight in weights]
    for state, weight in zip(given, weights, strict=True):
        if state.shape[-1] != weight.shape[-1]:
            raise UnsupportedModelError(
                f"A recurrent layer that keeps {weight.shape[-1]} units is given a first state of {state.shape[-1]}: "
                "call it without one (it starts at zero), as units are left out in training."
            )
    return list(given)
