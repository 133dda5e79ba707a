"""The global model: its weights, its version, its frame, and how a round's updates change it."""

from collections.abc import Iterable

import numpy as np
import torch
from array_api_compat import torch as xp
from numpy.typing import NDArray

from edge_fl.aggregation import Accumulator
from edge_fl.layout import Layout
from edge_fl.methods.base import Heard
from edge_fl.pattern import Pattern
from edge_fl.recipe import Recipe
from edge_fl.wire.frame import Frame, Header, encode_frame

__all__ = ["GlobalModel"]


class GlobalModel:
    """Weights and how often they were aggregated.

    Parameters
    ----------
    layout
        The model's.
    weights
        Full tensors by name.
    """

    def __init__(self, layout: Layout, weights: dict[str, NDArray[np.float32]]) -> None:
        self.layout, self.weights, self.version = layout, weights, 0
        self._device = "cuda" if torch.cuda.is_available() else "cpu"

    def frame(self, *, run: str, round: int, method: str) -> bytes:
        """The model as it goes to devices in ``round``."""
        header = Header(
            kind="model", run=run, round=round, version=self.version, layout=self.layout.digest, method=method
        )
        return encode_frame(header, Pattern.full(self.layout), self.weights)

    def aggregate(self, recipe: Recipe, round: int, updates: Iterable[tuple[int, Frame]]) -> float:
        """Apply the recipe's rule to updates (each with its device's tier), and let its server halves learn.

        They are summed in the order given, on CUDA where there is one. Returns the clients' mean training loss,
        weighted by their samples.
        """
        sums, heard = Accumulator(self.layout, xp=xp, device=self._device, rule=recipe.rule), []
        for tier, update in updates:
            header = update.header
            sums.add(update.selection, update.values, header.samples)
            heard.append(Heard(header.client, tier, header.samples, header.loss, update.pattern))
        change = sums.change(self.weights)
        change |= recipe.advance(round, {tensor.name: change[tensor.name] for tensor in self.layout.parameters})
        self.weights = {name: (old + change[name]).astype(np.float32) for name, old in self.weights.items()}
        self.version += 1
        recipe.method.learn(round, heard)
        return sum(h.loss * h.samples for h in heard) / sum(h.samples for h in heard)
