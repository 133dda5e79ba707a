import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.errors import DataError
from edge_fl.data.cifar_10 import decode_pictures


def record(label: int, red: int, green: int, blue: int) -> bytes:
    return bytes([label]) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def test_a_record_is_a_class_and_three_planes() -> None:
    samples = decode_pictures(record(3, 0, 51, 255) + record(9, 255, 0, 0), "f")
    assert samples.x.shape == (2, 3, 32, 32)
    assert samples.x.dtype == np.float32
    assert samples.x[:, :, 5, 7].tolist() == [[0.0, np.float32(0.2), 1.0], [1.0, 0.0, 0.0]]
    assert samples.y.tolist() == [3, 9]


def test_rows_come_before_columns() -> None:
    plane = np.arange(1024, dtype=np.uint16).astype(np.uint8)
    samples = decode_pictures(bytes([0]) + plane.tobytes() * 3, "f")
    assert samples.x[0, 2, 1, 2] == np.float32(34 / 255)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"", "holds 0 bytes"), (record(1, 2, 3, 4)[:-1], "holds 3072 bytes"), (record(10, 0, 0, 0), "class 10")],
)
def test_a_damaged_file_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=rf"^'f' {sentence}|^'f' holds {sentence}"):
        decode_pictures(content, "f")


@given(st.binary(max_size=4000))
def test_other_bytes_are_refused(content: bytes) -> None:
    if len(content) != 3073 or content[0] > 9:
        with pytest.raises(DataError):
            decode_pictures(content, "f")
