"""FlexLoRA (Bai et al., 2024): adapters of a rank that fits the device, averaged as products, divided by an SVD.

A client of tier t trains the first ceil(w_t r) ranks of each adapter. The server averages what all adapters add to
their layers, B A, and its largest singular values become the ranks of the next round (rule ``products``,
:mod:`edge_fl.aggregation.products`). All else that is trained is averaged over the clients.

Drops, in ``units`` mode, the last rows of A and the last columns of B: with k = ceil(w_t r) an adapter beside a layer
of n inputs and m outputs sends k (n + m) numbers.
"""

from edge_fl.methods._ranks import RankMethod
from edge_fl.methods.capabilities import ReordersUnits

__all__ = ["METHOD", "FlexLora"]


class FlexLora(RankMethod, ReordersUnits):
    """A device trains as many ranks as it affords; the server sorts them by what they do."""

    name = "flexlora"
    rule = "products"


METHOD = FlexLora
