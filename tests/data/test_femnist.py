import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.errors import DataError
from edge_fl.data.femnist import decode_leaf

BLANK = [1.0] * 784


def leaf(**writers: tuple[list[Any], list[Any]]) -> bytes:
    data = {name: {"x": x, "y": y} for name, (x, y) in writers.items()}
    return json.dumps(
        {"users": list(data), "num_samples": [len(w["y"]) for w in data.values()], "user_data": data}
    ).encode()


def test_a_file_gives_images_and_classes_by_writer() -> None:
    pages = decode_leaf(leaf(ann=([BLANK, [0.25] * 784], [0, 61]), bob=([BLANK], [10])), "f")
    assert list(pages) == ["ann", "bob"]
    x, y = pages["ann"]
    assert (x.shape, x.dtype, x[1, 0]) == ((2, 784), np.float32, 0.25)
    assert (y.dtype, y.tolist()) == (np.int64, [0, 61])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "no LEAF file"),
        (b"{}", "no LEAF file"),
        (leaf(a=([BLANK], [1]))[:-40], "no LEAF file"),
        (b"[" * 100_000, "no LEAF file"),
        (leaf(a=([["white"] * 784], [1])), "no LEAF file"),
        (leaf(a=([BLANK], [1.5])), "no LEAF file"),
        (leaf(a=([BLANK[1:]], [1])), "not 784 pixels and a class each"),
        (leaf(a=([BLANK], [1, 2])), "not 784 pixels and a class each"),
        (leaf(a=([BLANK], [62])), "not in 0 to 61"),
        (leaf(a=([BLANK], [-1])), "not in 0 to 61"),
        (leaf(a=([[2.0] * 784], [1])), "pixel outside 0 to 1"),
    ],
    ids=range(11),
)
def test_a_damaged_file_is_refused_in_one_sentence(content: bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=rf"^'train\.json' [^\n]*{sentence}[^\n]*\.$"):
        decode_leaf(content, "train.json")


@given(st.data())
def test_an_altered_file_is_refused_or_read(data: st.DataObject) -> None:
    content = bytearray(leaf(a=([BLANK], [1])))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + 4] = data.draw(st.binary(max_size=6))
    with suppress(DataError):
        for x, y in decode_leaf(bytes(content), "f").values():
            assert x.shape == (len(y), 784)
