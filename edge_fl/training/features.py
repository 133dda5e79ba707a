"""Samples as steps and evaluation take them, where a bundle has features computed once a sample."""

from dataclasses import replace

import numpy as np

from edge_fl.data.registry import Samples
from edge_fl.runtimes.base import Runtime

__all__ = ["with_features"]


def with_features(samples: Samples, runtime: Runtime) -> Samples:
    """``samples`` with the features of the bundle that ``runtime`` has open; themselves where it has none.

    Raises
    ------
    RuntimeMissingError
        When the bundle has features, and no program of this runtime that makes them.
    RunError
        When that program fails.
    """
    made = runtime.bundle.manifest.features
    if made is None:
        return samples
    x = runtime.features(samples.x) if len(samples.y) else np.zeros((0, *made.shape), made.dtype)
    return replace(samples, x=x, inputs=(), columns=())
