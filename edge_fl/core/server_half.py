"""Capabilities of methods and compressors on the server, between rounds: extend those that you need."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Layout
from edge_fl.core.selection import Weights

__all__ = ["Change", "PrunesModel", "State", "Stateful", "UpdatesModel", "Weighting"]

State = Mapping[str, NDArray[Any]]
"""What a device, or the server, keeps for a method or a compressor between rounds, by name."""

Change = dict[str, NDArray[np.float64]]
"""By how much each parameter is to change, full tensors by name: what an optimiser on the server takes for its
gradient, with the other sign (Reddi et al., *Adaptive Federated Optimization*, 2021, section 3).
"""

Weighting = Literal["samples", "clients"]
"""Whether an update counts in the average as many times as its client has samples, or once a client."""


class UpdatesModel(ABC):
    """Moves the model by an optimiser on the server."""

    @abstractmethod
    def server_update(self, round: int, change: Change) -> Change:
        """The change that the model is given in place of the one that the aggregation rule made of ``round``.

        May take note of either, and write to the arrays that it is given.
        """


class PrunesModel(ABC):
    """Gives another model than the one that training goes on from."""

    @abstractmethod
    def final_weights(self, weights: Weights) -> Weights:
        """What a run that ended now would give, full tensors by name, of the model ``weights``; not written to.

        The coordinator scores these after each round, and writes them at the end.
        """


class Stateful(ABC):
    """Remembers something on the server from round to round; checkpoints hold it."""

    @abstractmethod
    def state_dict(self) -> State:
        """What was learned by now, for a run that is interrupted."""

    @abstractmethod
    def load_state_dict(self, layout: Layout, learned: State) -> None:
        """Go on from what :meth:`state_dict` gave."""
