import numpy as np
import pytest

from edge_fl.core.randomness import Stream
from edge_fl.data.dirichlet import draw_dirichlet


@pytest.mark.parametrize("alpha", [0.001, 0.1, 1.0, 7.5, 1e6])
def test_shares_have_sum_one(alpha: float) -> None:
    shares = draw_dirichlet(Stream(1), alpha, 50)
    assert shares.shape == (50,)
    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 5.0])
def test_shares_have_the_moments_of_the_distribution(alpha: float) -> None:
    """Mean 1/n; variance (n - 1) / (n^2 (n alpha + 1)), within five standard errors of a generous kurtosis."""
    n, draws = 4, 1500
    shares = np.array([draw_dirichlet(Stream(key), alpha, n) for key in range(draws)])
    variance = (n - 1) / n**2 / (n * alpha + 1)
    assert np.abs(shares.mean(axis=0) - 1 / n).max() < 5 * np.sqrt(variance / draws)
    assert np.abs(shares.var(axis=0) / variance - 1).max() < 5 * np.sqrt(4 / draws)
