"""How far one client may move a model."""

import numpy as np

from edge_fl.core.divergence import farthest, max_change
from tests.layouts import TWO_PARAMETERS


def of(w: list[float], v: list[float], var: float = 0.0) -> dict[str, np.ndarray]:
    return {"w": np.float32(w), "v": np.float32(v), "var": np.full(3, var, np.float32)}


def test_it_goes_by_the_largest_parameter_whatever_the_statistics_are() -> None:
    assert max_change(TWO_PARAMETERS, of([0, -0.5, 0], [0.1, 0, 0], var=1e9)) == 1000
    assert max_change(TWO_PARAMETERS, of([0, -4, 0], [3, 0, 0])) == 4000
    assert farthest(TWO_PARAMETERS, of([1, 2, 3], [0, -7, 6], var=1e9)) == ("v", 7.0)
    nothing = {"w": np.zeros(0, np.float32), "v": np.float32([2]), "var": np.zeros(0, np.float32)}
    assert farthest(TWO_PARAMETERS, nothing) == ("v", 2.0)


def test_a_parameter_that_holds_a_nan_is_the_farthest() -> None:
    for changes in (
        of([1, np.nan, 0], [9, 0, 0]),
        of([9, 0, 0], [1, 0, np.nan]),
        of([np.inf, 0, 0], [np.nan, 0, 0]),
    ):
        name, size = farthest(TWO_PARAMETERS, changes)
        assert np.isnan(size)
        assert np.isnan(changes[name]).any()
