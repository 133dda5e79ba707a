"""A model's own dropout: train steps take its masks as inputs, so that every runtime drops the same."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import kept_entries, kept_shape

__all__ = ["DROPOUT", "Dropout", "drawn_masks", "masks_of_nothing_dropped"]

DROPOUT = "dropout."
"""What the names of such inputs begin with."""

_MOST_AXES = 16
_LEVELS = 1 << 16  # probabilities are rounded to one part of so many


class Dropout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One place of a model where it drops with probability ``p``.

    ``mask`` has the shape of one sample's mask and its axes, by the place's name. A step takes ``dropout.NAME``,
    ``[B, *shape]`` float32 of what is kept of these axes: 0 where it drops, elsewhere 1 / (1 - p).
    """

    mask: Tensor
    p: float

    def __post_init__(self) -> None:
        if not 0 < self.p < 1:
            raise ValueError("a model drops with a probability between 0 and 1")
        if len(self.mask.shape) > _MOST_AXES:
            raise ValueError(f"a mask has {_MOST_AXES} axes at the most")

    @property
    def input(self) -> str:
        """The name of the step's input."""
        return f"{DROPOUT}{self.mask.name}"


def drawn_masks(
    dropout: Sequence[Dropout], pattern: Pattern, *, batch: int, key: int
) -> dict[str, NDArray[np.float32]]:
    """The masks of one step, by input name, of the units that ``pattern`` keeps.

    A unit's mask does not depend on which others are kept.

    Parameters
    ----------
    batch
        Samples of the batch.
    key
        64 bits, of :func:`edge_fl.core.randomness.stream_key`.
    """
    words = np.random.Philox(key=key)  # a draw for each activation of a step: numpy's own is in C
    masks = {}
    for place in dropout:
        kept = kept_entries(place.mask, pattern, _drawn(place, batch, words), first=1)
        masks[place.input] = np.where(kept, np.float32(1 / (1 - place.p)), np.float32(0))
    return masks


def masks_of_nothing_dropped(
    dropout: Sequence[Dropout], pattern: Pattern, *, batch: int
) -> dict[str, NDArray[np.float32]]:
    """Masks of ones, by input name, of the units that ``pattern`` keeps."""
    return {place.input: np.ones((batch, *kept_shape(place.mask, pattern)), dtype=np.float32) for place in dropout}


def _drawn(place: Dropout, batch: int, words: np.random.Philox) -> NDArray[np.bool_]:
    """What is kept of the full mask."""
    shape = (batch, *place.mask.shape)
    size = batch * place.mask.size
    parts = words.random_raw(-(-size // 4)).astype("<u8", copy=False).view("<u2")[:size].reshape(shape)
    return parts < round((1 - place.p) * _LEVELS)
