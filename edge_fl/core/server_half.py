"""What methods and compressors have in common on the server: a step of their own, and what they remember of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Layout
from edge_fl.core.selection import Weights

__all__ = ["Change", "ServerHalf", "State"]

State = Mapping[str, NDArray[Any]]
"""What a device, or the server, keeps for a method or a compressor between rounds, by name."""

Change = dict[str, NDArray[np.float64]]
"""By how much each parameter is to change, full tensors by name: what an optimiser on the server takes for its
gradient, with the other sign (Reddi et al., *Adaptive Federated Optimization*, 2021, section 3).
"""


class ServerHalf:
    """The part of a method or a compressor that the server runs between rounds; by default it does nothing."""

    def server_update(self, round: int, change: Change) -> Change:
        """The change that the model is given in place of the one that the aggregation rule made of ``round``.

        May take note of either, and write to the arrays that it is given.
        """
        del round
        return change

    def final_weights(self, weights: Weights) -> Weights:
        """What a run that ended now would give, full tensors by name, of the model ``weights``; not written to.

        It is what is scored after each round, and at last written; training goes on from ``weights`` itself.
        """
        return weights

    def state_dict(self) -> State:
        """What was learned by now, for a run that is interrupted; empty where nothing is."""
        return {}

    def load_state_dict(self, layout: Layout, learned: State) -> None:
        """Go on from what :meth:`state_dict` gave."""
        del layout, learned
