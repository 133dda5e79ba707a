import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.errors import DataError
from edge_fl.data.sequences import cut_sequences, decode_text


@given(n=st.integers(0, 60), length=st.integers(1, 12))
def test_every_target_is_the_token_that_follows(n: int, length: int) -> None:
    samples = cut_sequences(np.arange(n), length)
    assert samples.x.shape == samples.y.shape == (max(n - 1, 0) // length, length)
    assert samples.x.reshape(-1).tolist() == list(range(samples.x.size))
    assert samples.y.tolist() == (samples.x + 1).tolist()
    assert n - 1 - samples.x.size < length


def test_text_is_utf_8() -> None:
    assert decode_text("Zürich\n".encode(), "f") == "Zürich\n"
    with pytest.raises(DataError, match="'f' is no UTF-8 text: byte 1 "):
        decode_text(b"a\xff", "f")
    with pytest.raises(DataError, match="'f' holds no text"):
        decode_text(b" \n", "f")
