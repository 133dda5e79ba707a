"""Arrays as bytes and back."""

import io

import numpy as np
import pytest

from edge_fl.core.arrays import packed, unpacked


def test_arrays_come_back_and_nothing_else_does() -> None:
    arrays = {"fc1.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "round": np.array(7)}
    back = unpacked(packed(arrays))
    assert list(back) == list(arrays)
    assert all(back[name].dtype == array.dtype for name, array in arrays.items())
    assert all(np.array_equal(back[name], array) for name, array in arrays.items())


def test_no_pickle_is_read() -> None:
    held = io.BytesIO()
    np.savez(held, scores=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        unpacked(held.getvalue())
