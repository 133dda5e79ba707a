"""Momentum on the server, for any method and compressor: ``--set server.momentum=0.9``.

FedAvgM (Hsu, Qi and Brown, *Measuring the Effects of Non-Identical Data Distribution*, 2019, section 4.2): the round's
change g moves ``v = beta v + g``, and v moves the model. TCS's global momentum (Ozfatura et al., 2021, eq. (16)) is the
same, as its mask is that of g.
"""

import msgspec

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout
from edge_fl.core.server_half import Change, State, Stateful, UpdatesModel

__all__ = ["SERVER", "ServerMomentum", "ServerParameters"]

SERVER = "server"
"""What stands before the server's own parameters, with a dot, as a compressor's name does before its."""


class ServerParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server does with a round's change, whatever the method: ``momentum`` is beta, in [0, 1)."""

    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"The server's momentum must be in [0, 1), not {self.momentum}.")


class ServerMomentum(UpdatesModel, Stateful):
    """Adds to each round's change what is left of earlier ones; remembers one full model in float64."""

    def __init__(self, parameters: ServerParameters) -> None:
        self.parameters = parameters
        self._velocity: Change = {}

    def server_update(self, round: int, change: Change) -> Change:
        """``v = beta v + change``, by tensor."""
        del round
        beta, before = self.parameters.momentum, self._velocity
        self._velocity = {
            name: beta * before[name] + array if name in before else array for name, array in change.items()
        }
        return dict(self._velocity)

    def state_dict(self) -> State:
        """The velocity, by tensor."""
        return dict(self._velocity)

    def load_state_dict(self, layout: Layout, learned: State) -> None:
        """Go on from what :meth:`state_dict` gave."""
        del layout
        self._velocity = dict(learned)
