"""The factor of a narrow model: what a method that scales activations in training gives a sub-model for predicting.

HeteroFL divides the outputs of every block's layer by the level's width while it trains. The full model predicts
without a factor. A sub-model that is to predict as it was trained needs its own, and a factor of a layer's outputs is
one of its weights and bias.
"""

import numpy as np

from edge_fl.core.bundle import Manifest
from edge_fl.core.selection import Weights

__all__ = ["MOST_FACTOR", "with_factor"]

MOST_FACTOR = 1000.0
"""That of a model of one unit in a thousand, the narrowest that there is."""


def with_factor(manifest: Manifest, weights: Weights, factor: float) -> Weights:
    """Full (or kept) tensors by name that give every block's layer ``factor`` times its outputs."""
    if factor == 1.0:
        return weights
    return {**weights, **{name: weights[name] * np.float32(factor) for name in manifest.scaled}}
