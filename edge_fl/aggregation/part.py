"""One update of a round, besides its values: what an accumulator remembers while the values wait."""

from dataclasses import dataclass

from edge_fl.aggregation.bounds import Clip
from edge_fl.core.layout import Tensor
from edge_fl.core.selection import Selection

__all__ = ["Part"]


@dataclass(frozen=True)
class Part:
    """``weight`` is what the rule counts for ``samples``; ``discount`` and ``clip`` are shares of the change."""

    selection: Selection
    samples: int
    weight: float
    discount: float
    clip: Clip

    def share(self, tensor: Tensor) -> float:
        """The share of ``tensor``'s change that counts."""
        return self.discount * self.clip.of(tensor)
