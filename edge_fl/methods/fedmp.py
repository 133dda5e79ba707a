"""FedMP (Jiang et al., 2022): each client trains the units of largest l1 norm of the global model.

A unit's norm is that of its own row with its bias; within each block the S_b largest are kept, ties broken at
random. The pruning ratio is fixed, by tier: the paper's bandit (E-UCB), which chooses it for each client from
round times and losses, is not built, for a server half does not hear round times. Residual recovery (R2SP) adds
the pruned part of the global model back to each sub-model before the mean, which in differences is rule
``delta``; the mean is weighted by samples.

Drops, in ``units`` mode, the rows and biases of pruned units and the columns that they would feed: the MLP
784-256-256-10 at p = 0.5 sends 784*128 + 128 + 128*128 + 128 + 128*10 + 10 numbers, and one bit a unit.
"""

import numpy as np
from numpy.typing import NDArray

from edge_fl.layout import Layout, Mode
from edge_fl.methods.base import DropoutMethod, DropoutParameters, Job, LocalHalf
from edge_fl.pattern import Pattern
from edge_fl.randomness import Stream
from edge_fl.selection import Weights

__all__ = ["METHOD", "FedMp", "FedMpParameters", "unit_norms"]


class FedMpParameters(DropoutParameters, frozen=True, forbid_unknown_fields=True):
    """What FedMP is run with: ``dropout``, the pruning ratio in thousandths, one a tier."""


class _Local(LocalHalf):
    def __init__(self, job: Job, dropout: int) -> None:
        ties = Stream.of(seed=job.seed, purpose="fedmp-ties", client=job.client, round=job.round)
        self.pattern = Pattern.highest(job.layout, dropout, unit_norms(job.layout, job.weights), ties)


class FedMp(DropoutMethod):
    """Each client prunes the units that weigh least in the global model."""

    name = "fedmp"
    Parameters = FedMpParameters
    parameters: FedMpParameters

    @property
    def rule(self) -> str:
        """``delta``: what a client pruned counts as unchanged."""
        return "delta"

    @property
    def mode(self) -> Mode:
        """A pruned unit's columns stay home with its row."""
        return "units"

    def local(self, job: Job) -> LocalHalf:
        """Prune the global model once a round."""
        return _Local(job, self.parameters.dropout[0])


def unit_norms(layout: Layout, weights: Weights) -> NDArray[np.float64]:
    """The l1 norm of each unit's own entries: its row of every trained tensor of its layer, bias included.

    Parameters
    ----------
    weights
        Full tensors by name.

    Returns
    -------
    ``[J]`` float64, over the blocks of ``layout`` in order.
    """
    norms = {block.name: np.zeros(block.size) for block in layout.blocks}
    for tensor in layout.parameters:
        magnitudes = np.abs(weights[tensor.name].astype(np.float64))
        for axis, segments in enumerate(tensor.rows):
            along = magnitudes.sum(axis=tuple(a for a in range(magnitudes.ndim) if a != axis))
            start = 0
            for segment in segments:
                length = segment.length(layout.sizes)
                if segment.block is not None:
                    own = along[start : start + length].reshape(segment.outer, -1, segment.inner)
                    norms[segment.block] += own.sum(axis=(0, 2))
                start += length
    return np.concatenate([norms[block.name] for block in layout.blocks]) if norms else np.zeros(0)


METHOD = FedMp
