from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Block, Layout
from edge_fl.core.pattern import Bitmask, Pattern, Prefix, Seeded, draw_seeded, kept_units, prefix_units
from edge_fl.core.randomness import Stream
from edge_fl.core.share import thousandths

SIZES = st.lists(st.integers(1, 40), max_size=4)
DROPOUT = st.integers(0, 999)
KEYS = st.integers(0, 2**64 - 1)


def blocks_of(sizes: list[int]) -> Layout:
    return Layout(tuple(Block(f"b{i}", size) for i, size in enumerate(sizes)), ())


@pytest.mark.parametrize("units", [1, 2, 3, 7, 10, 256, 300, 999, 1000, 4096])
def test_kept_units_are_exact_for_every_rate(units: int) -> None:
    for dropout in range(1000):
        rate = Fraction(dropout, 1000)
        assert kept_units(units, dropout) == floor((1 - rate) * units + Fraction(1, 2))
        assert prefix_units(units, dropout + 1) == ceil(Fraction(dropout + 1, 1000) * units)


@given(st.integers(0, 1000))
def test_thousandths_takes_every_multiple(value: int) -> None:
    assert thousandths(value / 1000) == value


@pytest.mark.parametrize(
    "rate", [-0.001, 1.001, 0.9999999, 0.0005, 2.0, float("nan"), float("inf"), -float("inf")]
)
def test_thousandths_refuses_the_rest(rate: float) -> None:
    with pytest.raises(ConfigError, match="A share must be in"):
        thousandths(rate)


@given(SIZES, st.integers(1, 1000))
def test_prefix_keeps_the_first_units_of_each_block(sizes: list[int], width: int) -> None:
    pattern = Pattern.prefix(blocks_of(sizes), width)
    for i, size in enumerate(sizes):
        assert pattern.kept[f"b{i}"].tolist() == list(range(prefix_units(size, width)))
    assert pattern.origin == Prefix(width)


@given(SIZES)
def test_full_keeps_everything(sizes: list[int]) -> None:
    pattern = Pattern.full(blocks_of(sizes))
    assert pattern.mask.all()
    assert pattern.mask.tolist() == [True] * sum(sizes)


@given(SIZES, DROPOUT, KEYS)
def test_seeded_draws_block_after_block_from_one_stream(sizes: list[int], dropout: int, key: int) -> None:
    pattern, stream = Pattern.seeded(blocks_of(sizes), dropout, key), Stream(key)
    for i, size in enumerate(sizes):
        words = stream.uint32(size).tolist()
        order = sorted(range(size), key=words.__getitem__)
        assert pattern.kept[f"b{i}"].tolist() == sorted(order[: kept_units(size, dropout)])
        assert pattern.counts[f"b{i}"] == kept_units(size, dropout)
    assert pattern.origin == Seeded(key, dropout)


def test_a_seed_tells_counts_and_equality_without_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = blocks_of([20, 7])
    with monkeypatch.context() as undrawn:
        undrawn.delattr(Stream, "subset")
        pattern = Pattern.seeded(layout, 250, 3)
        assert pattern.counts == {"b0": 15, "b1": 5}
        assert pattern == Pattern.seeded(layout, 250, 3)
    assert pattern != Pattern.seeded(layout, 250, 4)
    assert pattern == Pattern(layout, Pattern.seeded(layout, 250, 3).mask)


@given(SIZES, st.lists(st.tuples(DROPOUT, KEYS), max_size=4))
def test_patterns_that_are_drawn_together_are_those_drawn_apart(
    sizes: list[int], drawn: list[tuple[int, int]]
) -> None:
    layout = blocks_of(sizes)
    apart = [Pattern.seeded(layout, *each) for each in drawn]
    masks = [pattern.mask.tolist() for pattern in apart]
    together = [Pattern.seeded(layout, *each) for each in drawn]
    draw_seeded(
        [Pattern.prefix(layout, 500), *apart[:1], *together, Pattern(layout, np.ones(sum(sizes), np.bool_))]
    )
    assert all("mask" in vars(pattern) for pattern in together)
    assert [pattern.mask.tolist() for pattern in together] == masks
    assert [pattern.origin for pattern in together] == [pattern.origin for pattern in apart]


@pytest.mark.parametrize("width", [-1, 0, 1001])
def test_widths_out_of_range_are_refused(width: int) -> None:
    with pytest.raises(ConfigError, match=f"1 to 1000 thousandths, not {width}"):
        Pattern.prefix(blocks_of([4]), width)


@pytest.mark.parametrize("dropout", [-1, 1001])
def test_dropout_rates_out_of_range_are_refused(dropout: int) -> None:
    with pytest.raises(ConfigError, match=f"0 to 1000 thousandths, not {dropout}"):
        Pattern.seeded(blocks_of([4]), dropout, key=1)


def test_seeded_units_are_kept_equally_often() -> None:
    layout = blocks_of([20])
    kept = np.sum([Pattern.seeded(layout, 500, key).mask for key in range(4000)], axis=0)
    assert abs(kept - 2000).max() < 5 * np.sqrt(4000 * 0.25)


@given(st.data(), SIZES, DROPOUT)
def test_highest_keeps_no_unit_that_scores_below_a_dropped_one(
    data: st.DataObject, sizes: list[int], dropout: int
) -> None:
    total = sum(sizes)
    scores = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=total, max_size=total)), dtype=np.float64)
    pattern = Pattern.highest(blocks_of(sizes), dropout, scores, Stream(1))
    assert pattern.origin == Bitmask()
    for i, (size, start) in enumerate(zip(sizes, np.cumsum([0, *sizes]), strict=False)):
        block, mask = scores[start : start + size], pattern.mask[start : start + size]
        assert mask.sum() == kept_units(size, dropout)
        if 0 < mask.sum() < size:
            assert block[mask].min() >= block[~mask].max(), i


def test_highest_breaks_ties_by_the_stream() -> None:
    layout, scores = blocks_of([30]), np.zeros(30)
    patterns = {tuple(Pattern.highest(layout, 500, scores, Stream(key)).mask.tolist()) for key in range(10)}
    assert len(patterns) == 10
    again = Pattern.highest(layout, 500, scores, Stream(3))
    assert again == Pattern.highest(layout, 500, scores, Stream(3))


def test_patterns_with_equal_bits_are_equal() -> None:
    layout = blocks_of([4])
    prefix, bits = Pattern.prefix(layout, 500), Pattern(layout, np.array([True, True, False, False]))
    assert prefix == bits
    assert hash(prefix) == hash(bits)
    assert prefix != Pattern.full(layout)
    assert prefix != "prefix"
