"""Personal tensors: a device trains them, never sends them, and keeps them with what its method remembers.

FedPer (Arivazhagan et al., 2019) keeps the last layers so, LG-FedAvg (Liang et al., 2020) the first ones, and FedBN (Li
et al., 2021) those of BatchNorm.
"""

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import Bundle
from edge_fl.core.layout import Layout
from edge_fl.core.selection import Weights
from edge_fl.core.server_half import State

__all__ = ["personal_state", "personal_tensors", "remembered"]

_PREFIX = "personal tensors of "  # the layout's digest; no method or compressor calls what it remembers so


def personal_tensors(bundle: Bundle, state: State) -> dict[str, NDArray[np.float32]]:
    """Every personal tensor by its name: as ``state`` remembers it, or else as the bundle has it."""
    tensors, held = bundle.layout.personal, state.get(_PREFIX + bundle.layout.digest)
    if held is None or held.shape != (sum(tensor.size for tensor in tensors),):
        return dict(bundle.frozen.personal)
    found, start = {}, 0
    for tensor in tensors:
        found[tensor.name] = np.asarray(held[start : start + tensor.size], np.float32).reshape(tensor.shape)
        start += tensor.size
    return found


def personal_state(layout: Layout, weights: Weights) -> State:
    """What is to be remembered of the layout's personal tensors, which have these ``weights``; nothing of none."""
    parts = [weights[tensor.name].reshape(-1) for tensor in layout.personal]
    return {_PREFIX + layout.digest: np.concatenate(parts)} if parts else {}


def remembered(state: State) -> State:
    """The part of ``state`` that is of personal tensors."""
    return {name: array for name, array in state.items() if name.startswith(_PREFIX)}
