import numpy as np
import pytest

from edge_fl.core.layout import Mode
from edge_fl.measure.models import mlp_layout
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.sizes import pattern_at, size_at


@pytest.mark.parametrize("width", [1000, 600, 250])
@pytest.mark.parametrize("mode", ["rows", "units"])
def test_frames_are_as_large_as_they_are_said_to_be(width: int, mode: Mode) -> None:
    layout = mlp_layout(12, 9, 7, 3)
    header = Header("update", run="inspect", round=1, version=0, layout="", method="inspect", mode=mode)
    tensors = {tensor.name: np.zeros(tensor.shape, dtype=np.float32) for tensor in layout.tensors}

    size = size_at(layout, width)
    assert len(encode_frame(header, pattern_at(layout, width), tensors)) == getattr(size, mode)


def test_a_compact_model_holds_what_its_kept_units_hold() -> None:
    assert size_at(mlp_layout(12, 8, 3), 500).parameters == 12 * 4 + 4 + 4 * 3 + 3
