"""What the zoo says of a model: how it is built, what it takes and gives, and the data it goes with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

__all__ = ["Architecture", "Entry"]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model of one size, and the shapes it is for.

    Parameters
    ----------
    build
        Builds the model, with torch's own random initialisation.
    input_shape
        One sample without the batch axis: an image ``[C, H, W]``, or ``[T]`` tokens.
    input_dtype
        ``float32``, or ``int64`` for tokens, which are below ``classes``.
    classes
        Length of the outputs' last axis, which holds unnormalised log probabilities.
    per_position
        True when the outputs are ``[B, T, classes]`` and each of the T positions has a target; else they are
        ``[B, classes]``.
    """

    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    classes: int
    input_dtype: Literal["float32", "int64"] = "float32"
    per_position: bool = False

    @property
    def target_shape(self) -> tuple[int, ...]:
        """One sample's target without the batch axis, int64: ``()``, or ``[T]``."""
        return self.input_shape if self.per_position else ()


@dataclass(frozen=True, kw_only=True)
class Entry(Architecture):
    """A model of the zoo at the size its paper gives it.

    Parameters
    ----------
    name
        What users call it, as in ``zoo:resnet18``.
    dataset
        The data set of the paper's experiment; any other of the same shapes serves as well.
    narrowed
        The same kinds of layers in the same order with few units, for tests and first tries.
    """

    name: str
    dataset: str
    narrowed: Architecture
