"""The layout convolutions are computed in: ``[C, H, W, B]``, the batch innermost.

Every decomposition permutes its inputs to it and its results back; ``exporter.passes`` then lets the permutations
between two layers cancel.
"""

from torch import Tensor

__all__ = ["batch_first", "batch_last"]


def batch_last(x: Tensor) -> Tensor:
    """``[B, ...]`` as ``[..., B]``."""
    return x.permute(*range(1, x.dim()), 0)


def batch_first(x: Tensor) -> Tensor:
    """``[..., B]`` as ``[B, ...]``."""
    return x.permute(x.dim() - 1, *range(x.dim() - 1))
