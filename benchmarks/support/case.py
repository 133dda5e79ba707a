"""One line of a table of support: a model to export."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from edge_fl.core.bundle import CLASS_INDEX, BatchNormPolicy
from edge_fl.core.inputs import Input

__all__ = ["CLASSES", "SupportCase"]

CLASSES = 3
_VECTOR = Input((6,), "float32")


@dataclass(frozen=True)
class SupportCase:
    """One line of the table.

    Parameters
    ----------
    name
        What is tried.
    build
        A model that uses it and gives ``[B, classes]``.
    input
        One sample; tokens are below ``classes``.
    batch_norm
        The policy for BatchNorm's statistics.
    classes, target
        Classes of the outputs, and of tokens; one sample's target, a class index for each position where it has any.
    """

    name: str
    build: Callable[[], nn.Module]
    input: Input = _VECTOR
    batch_norm: BatchNormPolicy = "tracked"
    classes: int = CLASSES
    target: Input = CLASS_INDEX
