"""Dirichlet draws from a keyed stream."""

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.randomness import Stream

__all__ = ["draw_dirichlet"]


def draw_dirichlet(stream: Stream, alpha: float, n: int) -> NDArray[np.float64]:
    """Draw ``[n]`` shares, of sum 1, from the symmetric Dirichlet distribution of concentration ``alpha`` > 0.

    They are gamma variates over their sum, taken by logarithm: at alpha = 0.01 most would underflow.
    """
    logs = _log_gamma(stream, alpha, n)
    shares: NDArray[np.float64] = np.exp(logs - logs.max())
    shares /= shares.sum()
    return shares


def _log_gamma(stream: Stream, alpha: float, n: int) -> NDArray[np.float64]:
    """Marsaglia and Tsang (2000): gamma(alpha + 1) by rejection, times u^(1/alpha) for gamma(alpha)."""
    d = alpha + 1.0 - 1.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    logs, missing = np.empty(n), np.arange(n)
    while len(missing):
        z, u = stream.normal(len(missing)), _uniform(stream, len(missing))
        v = np.maximum(1.0 + c * z, 0.0) ** 3
        log_v = np.log(v, out=np.full_like(v, -np.inf), where=v > 0)
        fits = np.log(u) < 0.5 * z**2 + d - d * v + d * log_v
        logs[missing[fits]] = np.log(d) + log_v[fits]
        missing = missing[~fits]
    return logs + np.log(_uniform(stream, n)) / alpha


def _uniform(stream: Stream, n: int) -> NDArray[np.float64]:
    return (stream.uint32(n).astype(np.float64) + 0.5) / 2.0**32
