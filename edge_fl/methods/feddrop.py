"""FedDrop, federated dropout (Caldas et al., 2018, "Expanding the reach of federated learning").

The server draws, for each client and round, a fixed number S_b of the units of every block, and the client
trains that sub-model as a smaller dense one. A block holds the units of one fully-connected or convolutional
layer; the output layer is whole, and so are recurrent layers, which no layout names as blocks yet.

Drops, in ``units`` mode, the rows and biases of dropped units and the columns that they would feed: the MLP
784-256-256-10 at p = 0.5 sends 784*128 + 128 + 128*128 + 128 + 128*10 + 10 numbers. In ``rows`` mode the
columns travel, as the sizes of FedDrop in Table I of Xue et al. (2023) do (530 KB): 784*128 + 128 + 256*128 +
128 + 2560 + 10.

Where the paper can be read in two ways, both are parameters:

- What an update says of units outside its sub-model: nothing (rule ``holders``, the default), or that they did not
  change (``delta``).
- Kept activations are scaled by 1/(1-p) in local training (``scale``), as dropout is; the paper does not say.
"""

from typing import Literal

from edge_fl.layout import Mode
from edge_fl.methods.base import (
    Ask,
    AssignedHalf,
    DropoutMethod,
    DropoutParameters,
    Job,
    LocalHalf,
    inverse_kept,
)
from edge_fl.pattern import Pattern
from edge_fl.randomness import stream_key

__all__ = ["METHOD", "FedDrop", "FedDropParameters"]


class FedDropParameters(DropoutParameters, frozen=True, forbid_unknown_fields=True):
    """What FedDrop is run with, besides ``dropout``; the module says what each choice is."""

    mode: Mode = "units"
    rule: Literal["holders", "delta"] = "holders"
    scale: bool = True


class FedDrop(DropoutMethod):
    """The server draws S_b units of each block at random, anew for each client and round."""

    name = "feddrop"
    Parameters = FedDropParameters
    parameters: FedDropParameters

    @property
    def rule(self) -> str:
        """``holders`` unless told otherwise."""
        return self.parameters.rule

    @property
    def mode(self) -> Mode:
        """``units``, as in the paper, unless told otherwise."""
        return self.parameters.mode

    def assign(self, ask: Ask) -> Pattern:
        """A pattern of the stream of this client and round, which a retry finds again."""
        key = stream_key(seed=ask.seed, purpose="feddrop-pattern", client=ask.client, round=ask.round)
        return Pattern.seeded(ask.layout, self.dropout(ask.tier), key)

    def local(self, job: Job) -> LocalHalf:
        """Train what was drawn."""
        scale = inverse_kept(self.parameters.dropout[0]) if self.parameters.scale else 1.0
        return AssignedHalf(job, scale=scale)


METHOD = FedDrop
