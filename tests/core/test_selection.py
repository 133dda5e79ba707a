"""Gathering and scattering, against a reference that asks of every single entry whether it is kept."""

import itertools
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_fl.core.layout import Axis, Block, Layout, Mode, Segment, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection

MODES: tuple[Mode, ...] = get_args(Mode)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Up to 3 blocks and 3 tensors of rank 0 to 3, whose axes mix free and owned stretches of every kind."""
    blocks = tuple(Block(f"b{i}", draw(st.integers(1, 4))) for i in range(draw(st.integers(0, 3))))
    sizes = {block.name: block.size for block in blocks}
    segments = st.builds(
        Segment, st.sampled_from([None, *sizes]), outer=st.integers(1, 2), inner=st.integers(1, 2)
    )
    tensors = []
    for i in range(draw(st.integers(1, 3))):
        units: list[Axis] = draw(st.lists(st.lists(segments, min_size=1, max_size=2).map(tuple), max_size=3))
        shape = tuple(sum(s.length(sizes) for s in axis) for axis in units)
        whole = tuple((Segment(None, inner=length),) for length in shape)
        rows = (*units[:1], *whole[1:])
        tensors.append(Tensor(f"t{i}", shape, rows, tuple(units)))
    return Layout(blocks, tuple(tensors))


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    layout = draw(layouts())
    bits = draw(st.lists(st.booleans(), min_size=layout.units, max_size=layout.units))
    return Pattern(layout, np.array(bits, dtype=np.bool_))


def kept_indices(axis: Axis, length: int, pattern: Pattern) -> list[bool]:
    """Whether each index of an axis is kept: straight from the definition of a segment."""
    kept = [True] * length
    start = 0
    for segment in axis:
        if segment.block is None:
            start += segment.outer * segment.inner
            continue
        J = pattern.layout.sizes[segment.block]
        for j in range(J):
            for o, i in itertools.product(range(segment.outer), range(segment.inner)):
                kept[start + (o * J + j) * segment.inner + i] = j in pattern.kept[segment.block]
        start += segment.outer * J * segment.inner
    return kept


def kept_entries(tensor: Tensor, mode: Mode, pattern: Pattern) -> NDArray[np.bool_]:
    axes = [kept_indices(a, n, pattern) for a, n in zip(tensor.axes(mode), tensor.shape, strict=True)]
    flat = [all(entry) for entry in itertools.product(*axes)]
    return np.array(flat, dtype=np.bool_).reshape(tensor.shape)


def numbered(layout: Layout) -> dict[str, NDArray[np.float32]]:
    """Tensors in which every entry differs from every other."""
    ends = np.cumsum([t.size for t in layout.tensors]).tolist()
    return {
        t.name: np.arange(end - t.size, end, dtype=np.float32).reshape(t.shape)
        for t, end in zip(layout.tensors, ends, strict=True)
    }


@pytest.mark.parametrize("mode", MODES)
@given(patterns())
def test_gather_and_scatter_are_the_reference(mode: Mode, pattern: Pattern) -> None:
    layout = pattern.layout
    full = numbered(layout)
    selection = Selection.of(pattern, mode)
    gathered = selection.gather(full)
    target = {name: np.full_like(array, -1) for name, array in full.items()}
    selection.scatter(gathered, target)
    for tensor in layout.tensors:
        kept = kept_entries(tensor, mode, pattern)
        assert gathered[tensor.name].reshape(-1).tolist() == full[tensor.name][kept].tolist()
        assert gathered[tensor.name].shape == selection.shape(tensor)
        assert gathered[tensor.name].flags.c_contiguous
        np.testing.assert_array_equal(target[tensor.name], np.where(kept, full[tensor.name], -1))


@pytest.mark.parametrize("mode", MODES)
@given(patterns())
def test_what_units_keep_is_found_among_what_a_wider_selection_keeps(mode: Mode, pattern: Pattern) -> None:
    units, wide = Selection.of(pattern, "units"), Selection.of(pattern, mode)
    kept = {name: array + 1 for name, array in units.gather(numbered(pattern.layout)).items()}
    full = {tensor.name: np.zeros(tensor.shape, dtype=np.float32) for tensor in pattern.layout.tensors}
    units.scatter(kept, full)
    for name, array in wide.widened(kept, units).items():
        np.testing.assert_array_equal(array, wide.gather(full)[name])
    for tensor in pattern.layout.tensors:
        np.testing.assert_array_equal(wide.kept(tensor, full[tensor.name]), wide.gather(full)[tensor.name])


@pytest.mark.parametrize("mode", MODES)
@given(layouts())
def test_a_full_pattern_keeps_every_tensor_whole(mode: Mode, layout: Layout) -> None:
    selection = Selection.of(Pattern.full(layout), mode)
    full = numbered(layout)
    for name, kept in selection.gather(full).items():
        np.testing.assert_array_equal(kept, full[name])
    assert all(axis is None for axes in selection.axes.values() for axis in axes)
    assert "mask" not in vars(selection.pattern)  # which takes as long as a small frame


def test_units_of_convolution_and_lstm_own_what_the_design_says() -> None:
    """A flattened 2-filter convolution of 3 pixels a channel, and the 4 gate stripes of 2 hidden units."""
    layout = Layout(
        (Block("conv", 2), Block("hidden", 2)),
        (
            Tensor("linear", (6,), ((Segment("conv", inner=3),),), ((Segment("conv", inner=3),),)),
            Tensor("gates", (8,), ((Segment("hidden", outer=4),),), ((Segment("hidden", outer=4),),)),
        ),
    )
    pattern = Pattern(layout, np.array([False, True, True, False]))
    kept = Selection.of(pattern, "units").gather(numbered(layout))
    assert kept["linear"].tolist() == [3, 4, 5]
    assert (kept["gates"] - 6).tolist() == [0, 2, 4, 6]
