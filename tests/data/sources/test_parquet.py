"""Parquet files: what they give, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from edge_fl.core.errors import DataError
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import open_source


def written(path: Path, columns: dict[str, Any]) -> Path:
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    return path


def opened(path: Path, options: str = "") -> Samples:
    return open_source(f"parquet:{path}{options}").samples()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    columns = {"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "label": [2, 0, 1], "who": ["x", "y", "x"]}
    return written(tmp_path / "a.parquet", columns)


def test_columns_mean_what_those_of_a_csv_file_mean(path: Path, tmp_path: Path) -> None:
    csv = tmp_path / "a.csv"
    csv.write_text("a,b,label,who\n1,0.5,2,x\n2,1.5,0,y\n3,2.5,1,x\n")
    for more in ("", "&features=b,a", "&shape=2x1", "&target=b,a&features=a"):
        ours = opened(path, f"?owner=who{more}")
        theirs = open_source(f"csv:{csv}?owner=who{more}").samples()
        for name in ("x", "y", "owner"):
            one, other = getattr(ours, name), getattr(theirs, name)
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def test_a_column_of_lists_is_as_many_features(tmp_path: Path) -> None:
    windows = np.arange(24, dtype=np.float32).reshape(4, 6)
    path = written(tmp_path / "w.parquet", {"window": windows.tolist(), "label": ["on", "off", "on", "off"]})
    names = tmp_path / "names.txt"
    names.write_text("off\non\n")
    samples = opened(path, f"?shape=2x3&classes={names}")
    np.testing.assert_array_equal(samples.x, windows.reshape(4, 2, 3))
    assert samples.y.tolist() == [1, 0, 1, 0]


def test_it_is_read_again_once_it_is_another(path: Path) -> None:
    source = open_source(f"parquet:{path}?features=a")
    first = source.samples()
    assert source.samples() is first
    written(path, {"a": [5.0, 6.0], "label": [0, 1]})
    assert source.samples().x.tolist() == [[5], [6]]


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ({"a": [1.0], "y": [0]}, "", "has no column 'label' among its columns: a, y"),
        ({"label": [0]}, "", "has no column but 'label'"),
        ({"a": [1.0, None], "label": [0, 1]}, "", "row 2: column 'a' has no value there"),
        ({"a": [1.0, float("nan")], "label": [0, 1]}, "", "row 2: what column 'a' holds is no finite number"),
        ({"a": [1.0, 1e300], "label": [0, 1]}, "", "row 2: what column 'a' holds is no finite number"),
        ({"a": ["x"], "label": [0]}, "", "has string in column 'a', which holds no numbers"),
        ({"a": [1.0], "label": ["cat"]}, "", "has string in column 'label', no classes from 0"),
        ({"a": [1.0], "label": [0.5]}, "", "has double in column 'label', no classes from 0"),
        ({"a": [1.0], "label": [-1]}, "", "holds a class below 0 in row 1"),
        ({"a": [[1.0], [2.0, 3.0]], "label": [0, 1]}, "", "row 2: its list in column 'a' is not 1 long"),
        ({"a": [[1.0, None]], "label": [0]}, "", "a list with a gap in column 'a'"),
        ({"a": [1.0], "label": [0]}, "?shape=2", "has 1 features a row, which cannot become"),
        ({"a": pa.array([], pa.float32()), "label": pa.array([], pa.int64())}, "", "holds no samples"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tmp_path: Path, columns: dict[str, Any], options: str, sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        opened(written(tmp_path / "bad.parquet", columns), options)


def test_another_file_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "no.parquet").write_bytes(b"PAR1 and no more PAR1")
    with pytest.raises(DataError, match=r"no\.parquet' cannot be read as Parquet: "):
        opened(tmp_path / "no.parquet")
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet'"):
        opened(path)
