"""HetLoRA (Cho et al., 2024): adapters of a rank that fits the device, averaged rank by rank.

A client of tier t trains the first ceil(w_t r) ranks of each adapter, and a rank is averaged over the clients that
have it (rule ``holders``). The paper counts a rank that a client lacks as zeros (rule ``zeros``). A and B of the last
ranks then shrink each round by the share of who has them, and a rank at zero has no gradient ever again. The paper
makes up for that by weights that grow with the norm of a client's product, and prunes ranks on the device: neither is
here.

Drops, in ``units`` mode, the last rows of A and the last columns of B: with k = ceil(w_t r) an adapter beside a layer
of n inputs and m outputs sends k (n + m) numbers.
"""

from typing import Literal

from edge_fl.methods._ranks import RankMethod, RankParameters

__all__ = ["METHOD", "HetLora", "HetLoraParameters"]


class HetLoraParameters(RankParameters, frozen=True, forbid_unknown_fields=True):
    """What HetLoRA takes beside ``widths`` and ``weighting``.

    Parameters
    ----------
    rule
        ``holders`` averages a rank over the clients that have it; ``zeros``, the paper's, counts it as zero at all
        others; ``mean`` as unchanged.
    """

    rule: Literal["holders", "zeros", "mean"] = "holders"


class HetLora(RankMethod):
    """A device trains as many ranks as it affords; a rank is averaged over those who have it."""

    name = "hetlora"
    Parameters = HetLoraParameters
    parameters: HetLoraParameters

    @property
    def rule(self) -> str:
        """``holders`` unless told otherwise."""
        return self.parameters.rule


METHOD = HetLora
