"""Dropout of a user's own model under given masks, put where torch itself draws numbers of zero and one."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from edge_fl.core.errors import UnsupportedModelError
from exporter.source import DropoutPlace

__all__ = ["DrawnMasks"]

_DRAW = torch.ops.aten.bernoulli_.float
_CLOSE = 1e-6


class DrawnMasks(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """While active, one forward pass draws what ``masks`` say.

    It looks at torch's operations where :class:`exporter.dropout_calls.GivenMasks` looks at its functions, so each
    shows what the other leaves out.

    Parameters
    ----------
    places
        The calls of dropout that are known, in order.
    masks
        ``[B, ...]``, 0 or 1 / (1 - p), by input name.
    """

    def __init__(self, places: Sequence[DropoutPlace | None], masks: dict[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._places, self._masks = list(places), masks

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or write what it would have drawn."""
        share = args[1] if len(args) > 1 else 0.5  # torch leaves out what is the default
        if func is not _DRAW or not 0 < share < 1:
            return func(*args, **(kwargs or {}))
        if not self._places:
            raise self._unknown()
        place = self._places.pop(0)
        if place is None:
            return func(*args, **(kwargs or {}))
        drawn = args[0]
        mask = place.arranged(self._masks[place.dropout.input] > 0)
        if mask.numel() != drawn.numel() or abs(1 - share - place.dropout.p) > _CLOSE:
            raise self._unknown()
        return drawn.copy_(mask.reshape(drawn.shape))

    def require_all_drawn(self) -> None:
        """Raise UnsupportedModelError when the pass has left out a place."""
        if self._places:
            raise self._unknown()

    @staticmethod
    def _unknown() -> UnsupportedModelError:
        return UnsupportedModelError(
            "The model draws other random numbers in training than its dropout's: remove them, or export with "
            "--no-dropout."
        )
