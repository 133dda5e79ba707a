"""Lengths to trace with, of which no two agree by chance."""

import pytest

from edge_fl.core.errors import UnsupportedModelError
from edge_fl.core.layout import Block, Layout, Segment, Tensor
from exporter import example_lengths
from exporter.example_lengths import distinct_batch, distinct_counts

SIZE = 4


def layout_of(*axes: str) -> Layout:
    """A tensor an axis, whose blocks follow one another: ``ac`` has the units of a, then those of c."""
    blocks = [Block(name, SIZE) for name in sorted(set("".join(axes)))]
    tensors = []
    for number, axis in enumerate(axes):
        segments = (tuple(Segment(name) for name in axis),)
        tensors.append(Tensor(str(number), (SIZE * len(axis),), segments, segments))
    return Layout(tuple(blocks), tuple(tensors))


def test_a_progression_is_no_answer_where_two_outer_blocks_meet_and_the_middle_one_twice() -> None:
    """As in a U-Net: in 5, 9, 13 the outer two add up to twice the middle one, in whatever progression."""
    layout = layout_of("a", "b", "c", "ac", "bb", "ca")
    counts = distinct_counts(layout, "abc", [7])
    lengths = [counts["a"], counts["b"], counts["c"], counts["a"] + counts["c"], 2 * counts["b"], 7]
    assert len(set(lengths)) == len(lengths)
    assert distinct_batch(layout, counts, [3, 4]) not in {*lengths, 3, 4}


def test_small_models_have_small_lengths() -> None:
    assert distinct_counts(layout_of("a", "b"), "ab", [6]) == {"a": 5, "b": 9}
    assert distinct_counts(layout_of("a", "b"), "ab", [9]) == {"a": 7, "b": 11}


def test_a_search_without_an_end_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_lengths, "_DRAWS", 0)
    with pytest.raises(UnsupportedModelError, match="'edge_fl_dense'"):
        distinct_counts(layout_of("a", "b", "c", "ac", "bb"), "abc", [])
