"""HetLoRA (Cho et al., 2024), zero padding: adapters of a rank that fits the device, averaged as if padded with zeros.

A client of tier t trains the first ceil(w_t r) ranks of each adapter. Ranks that it has not count as zeros in the mean
(rule ``zeros``), which therefore decays the last ranks; rule ``holders`` averages a rank over the clients that have it.
The paper also weighs clients by the norm of their product, and prunes ranks on the device. Both are left out here.

Drops, in ``units`` mode, the last rows of A and the last columns of B: with k = ceil(w_t r) an adapter beside a layer
of n inputs and m outputs sends k (n + m) numbers.
"""

from typing import Literal

from edge_fl.core.server_half import Weighting
from edge_fl.methods._ranks import RankMethod, RankParameters

__all__ = ["METHOD", "HetLora", "HetLoraParameters"]


class HetLoraParameters(RankParameters, frozen=True, forbid_unknown_fields=True):
    """What HetLoRA is run with, besides ``widths``."""

    rule: Literal["zeros", "holders", "mean"] = "zeros"
    weighting: Weighting = "samples"


class HetLora(RankMethod):
    """A device trains as many ranks as it affords; the mean counts what it lacks as zero."""

    name = "hetlora"
    Parameters = HetLoraParameters
    parameters: HetLoraParameters

    @property
    def rule(self) -> str:
        """``zeros`` unless told otherwise."""
        return self.parameters.rule

    @property
    def weighting(self) -> Weighting:
        """By samples unless told otherwise."""
        return self.parameters.weighting


METHOD = HetLora
