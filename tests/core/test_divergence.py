"""How far one client may move a model."""

import numpy as np

from edge_fl.core.divergence import farthest, max_change
from edge_fl.core.layout import Block, Layout, Segment, Tensor

UNITS = ((Segment("b"),),)
LAYOUT = Layout(
    (Block("b", 3),),
    (
        Tensor("w", (3,), rows=UNITS, units=UNITS),
        Tensor("v", (3,), rows=UNITS, units=UNITS),
        Tensor("var", (3,), rows=UNITS, units=UNITS, role="statistic"),
    ),
)


def of(w: list[float], v: list[float], var: float = 0.0) -> dict[str, np.ndarray]:
    return {"w": np.float32(w), "v": np.float32(v), "var": np.full(3, var, np.float32)}


def test_it_goes_by_the_largest_parameter_whatever_the_statistics_are() -> None:
    assert max_change(LAYOUT, of([0, -0.5, 0], [0.1, 0, 0], var=1e9)) == 1000
    assert max_change(LAYOUT, of([0, -4, 0], [3, 0, 0])) == 4000
    assert farthest(LAYOUT, of([1, 2, 3], [0, -7, 6], var=1e9)) == ("v", 7.0)
    nothing = {"w": np.zeros(0, np.float32), "v": np.float32([2]), "var": np.zeros(0, np.float32)}
    assert farthest(LAYOUT, nothing) == ("v", 2.0)
