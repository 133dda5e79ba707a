"""FedDrop, federated dropout (Caldas et al., 2018, "Expanding the reach of federated learning").

The server draws, for each client and round, a fixed number S_b of the units of every block, and the client
trains that sub-model as a smaller dense one. A block holds the units of one fully-connected, convolutional or
embedding layer; the output layer is whole, and so are recurrent layers. Of a language model the embedding is left to
drop, and with it the columns of the first recurrent layer. Xue et al. (2023), whose sizes of FedDrop on text are those
of half a decoder, drop what it reads; here that would be units of the recurrent layer.

Drops, in ``units`` mode, the rows and biases of dropped units and the columns that they would feed: the MLP
784-256-256-10 at p = 0.5 sends 784*128 + 128 + 128*128 + 128 + 128*10 + 10 numbers. In ``rows`` mode the
columns travel, as the sizes of FedDrop in Table I of Xue et al. (2023) do (530 KB): 784*128 + 128 + 256*128 +
128 + 2560 + 10.

Where the paper can be read in two ways, both are parameters:

- What an update says of units outside its sub-model: nothing (rule ``holders``, the default), or that they did not
  change (``mean``).
- Kept activations are scaled by 1/(1-p) in local training (``scale``), as dropout is; the paper does not say. A model
  with recurrent layers is not: a step has one factor for all layers.
"""

from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import stream_key
from edge_fl.methods._sub_model import SubModelMethod, SubModelParameters, with_recurrent
from edge_fl.methods.base import Ask
from edge_fl.methods.capabilities import DrawsWithoutData

__all__ = ["METHOD", "FedDrop"]


class FedDrop(SubModelMethod, DrawsWithoutData):
    """The server draws S_b units of each block at random, anew for each client and round."""

    name = "feddrop"
    Parameters = SubModelParameters

    def assign(self, ask: Ask) -> Pattern:
        """A pattern of the stream of this client and round, which a retry finds again."""
        key = stream_key(seed=ask.seed, purpose="feddrop-pattern", client=ask.client, round=ask.round)
        return with_recurrent(Pattern.seeded(ask.layout, self.dropout(ask.tier), key))


METHOD = FedDrop
