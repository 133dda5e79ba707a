"""The file of frozen tensors: what is packed is mapped, and what a pattern drops is cut."""

from pathlib import Path

import numpy as np
import pytest

from edge_fl.core.errors import BundleError
from edge_fl.core.frozen import FrozenTensors, frozen_size, pack_frozen
from edge_fl.core.layout import Block, Layout, Segment, Tensor
from edge_fl.core.pattern import Pattern

FREE, UNITS = (Segment(None, inner=3),), (Segment("b", inner=2),)
TRAINED = Tensor("w", (8, 3), (UNITS, FREE), (UNITS, FREE))
MATRIX = Tensor("f", (3, 8), (FREE, (Segment(None, inner=8),)), (FREE, UNITS), role="frozen")
INDEX = Tensor("i", (3,), (FREE,), (FREE,), dtype="int64", role="frozen")
MASK = Tensor("m", (3,), (FREE,), (FREE,), dtype="bool", role="frozen")
LAYOUT = Layout((Block("b", 4),), (TRAINED,), (MASK, MATRIX, INDEX))
ARRAYS = {
    "f": np.arange(24, dtype=np.float32).reshape(3, 8),
    "i": np.array([5, -1, 1 << 40]),
    "m": np.array([True, False, True]),
}


def test_what_is_packed_is_mapped_uncopied(tmp_path: Path) -> None:
    (tmp_path / "frozen.bin").write_bytes(pack_frozen(LAYOUT, ARRAYS))
    found = FrozenTensors(tmp_path / "frozen.bin", LAYOUT)
    assert list(found.whole) == ["m", "f", "i"]
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found.whole[name], array)
        assert found.whole[name].dtype == array.dtype
        assert found.whole[name].ctypes.data % 64 == 0
    kept = found.kept(Pattern(LAYOUT, np.array([False, True, False, True])))
    np.testing.assert_array_equal(kept["f"], ARRAYS["f"][:, [2, 3, 6, 7]])
    assert kept["f"].flags.c_contiguous
    assert kept["i"] is found.whole["i"]
    assert found.kept(Pattern.full(LAYOUT))["f"] is found.whole["f"]


@pytest.mark.parametrize("content", [b"", b"x" * 63, b"x" * (frozen_size(LAYOUT) + 1)])
def test_a_file_of_another_size_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "frozen.bin").write_bytes(content)
    with pytest.raises(BundleError, match=r"frozen\.bin"):
        FrozenTensors(tmp_path / "frozen.bin", LAYOUT)


def test_nothing_frozen_needs_no_file(tmp_path: Path) -> None:
    assert FrozenTensors(tmp_path / "none", Layout((), (INDEX_FREE,))).whole == {}


INDEX_FREE = Tensor("w", (3,), (FREE,), (FREE,))


@pytest.mark.parametrize(
    ("tensors", "frozen", "says"),
    [
        ((MATRIX,), (), "frozen or not of float32"),
        ((Tensor("w", (3,), (FREE,), (FREE,), dtype="int64"),), (), "not of float32"),
        ((), (TRAINED,), "not frozen, or has rows"),
        ((INDEX_FREE,), (Tensor("w", (3,), (FREE,), (FREE,), role="frozen"),), "one name"),
    ],
)
def test_layouts_that_make_no_sense(tensors: tuple[Tensor, ...], frozen: tuple[Tensor, ...], says: str) -> None:
    with pytest.raises(BundleError, match=says):
        Layout((Block("b", 4),), tensors, frozen)
