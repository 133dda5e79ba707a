import numpy as np
import pytest

from edge_fl.core.layout import Block, Layout, Segment, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.width_statistics import (
    one_hot,
    row_at,
    row_weights,
    trained_width,
    width_of,
    with_rows,
    without_rows,
)
from edge_fl.measure.models import mlp_layout

FREE, UNITS = (Segment(None, inner=2),), (Segment("conv"),)
LAYOUT = Layout(
    (Block("conv", 3),),
    (
        Tensor("conv.weight", (3, 2), rows=(UNITS, FREE), units=(UNITS, FREE)),
        Tensor("bn.mean", (3,), rows=(UNITS,), units=(UNITS,), role="statistic"),
    ),
)


def test_only_statistics_get_a_row_for_each_width_and_lose_them_again() -> None:
    rowed = with_rows(LAYOUT, 4)

    assert [(tensor.name, tensor.shape, tensor.per_width) for tensor in rowed.tensors] == [
        ("conv.weight", (3, 2), False),
        ("bn.mean", (4, 3), True),
    ]
    assert without_rows(rowed) == LAYOUT == without_rows(LAYOUT)


@pytest.mark.parametrize(
    ("width", "row"), [(1000, 1), (800, 1), (750, 1), (700, 0), (500, 0), (300, 2), (250, 2), (62, 2), (375, 0)]
)
def test_a_width_has_the_nearest_row_and_between_two_the_wider(width: int, row: int) -> None:
    widths = (500, 1000, 250)
    assert row_at(widths, width) == row
    assert one_hot(widths, width).tolist() == [float(i == row) for i in range(3)]


def test_a_row_is_read_from_full_tensors() -> None:
    weights = {"conv.weight": np.ones((3, 2), np.float32), "bn.mean": np.arange(6, dtype=np.float32).reshape(2, 3)}
    own = row_weights(with_rows(LAYOUT, 2), weights, (1000, 500), 400)

    assert own["bn.mean"].tolist() == [3, 4, 5]
    assert own["conv.weight"] is weights["conv.weight"]


@pytest.mark.parametrize(
    ("moved", "width", "nearest"),
    [([0], 250, 500), ([0, 2], 1000, 500), ([0, 1], 750, 1000), ([0, 1, 2], 300, 250), ([], 300, 300)],
)
def test_statistics_that_nobody_trained_give_way_to_the_nearest(
    moved: list[int], width: int, nearest: int
) -> None:
    layout, start = with_rows(LAYOUT, 3), {"bn.mean": np.ones((3, 3), np.float32)}
    weights = {"conv.weight": np.zeros((3, 2), np.float32), "bn.mean": start["bn.mean"].copy()}
    weights["bn.mean"][moved, 2] = 2

    assert trained_width(layout, start, weights, (500, 1000, 250), width) == nearest
    assert trained_width(LAYOUT, {}, {}, (), width) == width


def test_first_units_have_their_widths_statistics_and_other_patterns_the_full_models() -> None:
    layout = mlp_layout(4, 6, 3)

    assert width_of(Pattern.prefix(layout, 400)) == 400
    assert width_of(Pattern.full(layout)) == 1000
    assert width_of(Pattern.seeded(layout, 600, 1)) == 1000
    assert width_of(Pattern(layout, Pattern.prefix(layout, 400).mask)) == 1000
