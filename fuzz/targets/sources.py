"""A device's own data files."""

import io
from pathlib import Path

import numpy as np

from edge_fl.core.errors import BundleError, ConfigError, DataError
from edge_fl.data.sources.base import open_source
from edge_fl.data.tokenizer import encoded, open_tokenizer
from fuzz.target import Prepared
from fuzz.targets.files import folder

__all__ = ["csv", "idx", "images", "npz", "parquet", "text", "tokenizer"]


def _source(spec: str, file: Path, *seeds: bytes) -> Prepared:
    """Read ``file`` through the source that ``spec`` opens; it must read the first of ``seeds``."""
    file.write_bytes(seeds[0])
    open_source(spec).samples()

    def run(data: bytes) -> None:
        file.write_bytes(data)
        try:
            samples = open_source(spec).samples()
        except (ConfigError, DataError):
            return
        assert len(samples.x) == len(samples.y)

    return Prepared(run, seeds)


def csv() -> Prepared:
    """A table of numbers and a label."""
    file = folder() / "table.csv"
    return _source(f"csv:{file}?label=y", file, b"a,b,y\n1,2,0\n3.5,-4e3,1\n", b'"a",y\n"1""",x\n')


def npz() -> Prepared:
    """Arrays ``x`` and ``y``, or inputs by name."""
    file, held, named = folder() / "data.npz", io.BytesIO(), io.BytesIO()
    np.savez(held, x=np.ones((2, 3), np.float32), y=np.array([0, 1]))
    np.savez(named, ids=np.ones((2, 3), np.int64), mask=np.ones((2, 3), np.bool_), y=np.array([0, 1]))
    return _source(f"npz:{file}", file, held.getvalue(), named.getvalue())


def idx() -> Prepared:
    """MNIST's files: images; their labels stay as they are."""
    root = folder()
    images = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 2, 2)) + bytes(range(8))
    (root / "labels").write_bytes(b"\0\0\x08\x01" + (2).to_bytes(4, "big") + bytes(2))
    return _source(f"idx:{root}/images?labels={root}/labels", root / "images", images)


def images() -> Prepared:
    """A folder with a class and a picture."""
    from PIL import Image

    root = folder()
    (root / "0").mkdir()
    seeds = []
    for kind in ("PNG", "JPEG", "BMP", "GIF"):
        held = io.BytesIO()
        Image.new("L", (4, 4), 7).save(held, kind)
        seeds.append(held.getvalue())
    return _source(f"images:{root}?shape=1x4x4", root / "0" / "a.png", *seeds)


def parquet() -> Prepared:
    """A table of numbers and a label."""
    import pyarrow
    from pyarrow import parquet as files

    file, held = folder() / "table.parquet", io.BytesIO()
    files.write_table(pyarrow.table({"a": [1.0, 2.0], "y": [0, 1]}), held)
    return _source(f"parquet:{file}?label=y", file, held.getvalue())


def text() -> Prepared:
    """A text in UTF-8."""
    file = folder() / "text.txt"
    return _source(f"text:{file}?length=4&vocabulary=bytes", file, "Äpfel und Birnen, and more of them".encode())


def tokenizer() -> Prepared:
    """A bundle's tokenizer, and a text that it reads."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    made = Tokenizer(WordLevel({"<unk>": 0, "warm": 1, "soup": 2}, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    texts = np.array(["warm soup", ""], dtype=np.object_)

    def run(data: bytes) -> None:
        try:
            found = encoded(open_tokenizer(data, "the file"), texts, 4, 0)
        except BundleError:
            return
        assert found["input_ids"].shape == (2, 4)

    return Prepared(run, (made.to_str().encode(),))
