"""Every source on files of its own kind: what it gives, and what it refuses."""

import csv
import gzip
import io
import re
import struct
import textwrap
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edge_fl.core.errors import DataError
from edge_fl.data.checked import checked_samples
from edge_fl.data.idx import decode_idx, idx_shape
from edge_fl.data.registry import Samples
from edge_fl.data.sources._table import Columns
from edge_fl.data.sources.base import open_source, source_names
from edge_fl.data.sources.csv import decode_csv


def opened(text: str) -> Samples:
    return open_source(text).samples()


def refusal(text: str) -> str:
    with pytest.raises(DataError) as refused:
        opened(text)
    sentence = str(refused.value)
    assert sentence.endswith((".", "?"))
    assert "\n" not in sentence
    return sentence


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def test_sources_are_found_by_their_files() -> None:
    assert source_names() == ["csv", "idx", "images", "npz", "parquet", "python", "text"]
    assert "names no data; write a data set" in refusal("cvs:a.csv")
    assert "no data set 'cvs'" in refusal("cvs")


def test_a_share_of_a_data_set_is_one_too_and_never_changes() -> None:
    source = open_source("digits:3/10")
    assert source.samples() is source.samples()
    assert len(source.samples().y) == 144


# --- CSV


def test_csv(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '\ufeffid,"b, c",a,label\n7,1.5,2,1\n\n8,-1e-3, 4 ,0\n')
    samples = opened(f"csv:{path}?features=a,id")
    assert samples.x.tolist() == [[2, 7], [4, 8]]
    assert samples.y.tolist() == [1, 0]
    assert (samples.x.dtype, samples.y.dtype) == (np.float32, np.int64)
    assert opened(f"csv:{path}?shape=1x3").x.shape == (2, 1, 3)
    assert opened(f"csv:{path}?ignore=id,a").x.tolist() == [[1.5], [np.float32(-1e-3)]]
    names = write(tmp_path / "names.txt", "cat\ndog\n")
    path = write(tmp_path / "b.csv", "kind,x\ndog,1\ncat,2\n")
    named = opened(f"csv:{path}?label=kind&classes={names}")
    assert named.y.tolist() == [1, 0]
    assert named.class_names == tuple(names.read_text().split())


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        ("", "", "holds no text"),
        ("x,y\n1,2\n", "", "has no column 'label' among its columns: x, y"),
        (
            ",".join(f"t{i}" for i in range(96)) + ",y\n" + "1," * 96 + "1\n",
            "",
            "among its columns: t0, t1, t2, t3, ..., t93, t94, t95, y",
        ),
        ("x,x,label\n1,1,2\n", "", "has 2 columns 'x'"),
        ("label\n1\n", "", "no column but 'label'"),
        ("x,label\n", "", "holds no samples"),
        ("x,label\n1,0\n2\n", "", "line 3: it has 1 cells, and the first line names 2"),
        ("x,label\n1,0\nwet,0\n", "", "line 3: 'wet' in column 'x' is no finite number"),
        ("x,label\n1,0\nnan,0\n", "", "line 3: 'nan' in column 'x' is no finite number"),
        ("x,label\n1e39,0\n", "", "line 2: '1e39' in column 'x' is no finite number"),
        ("x,label\n,0\n", "", "line 2: '' in column 'x'"),
        ("x,label\n1,-1\n", "", "line 2: '-1' is no class from 0; for names of classes give classes=FILE"),
        ("x,label\n1,1.0\n", "", "line 2: '1.0' is no class"),
        ('x,label\n"1,0\n', "", "line 2: it is no CSV"),
        ("x,label\n1,0\n", "?shape=2x2", r"has 1 features a line, which cannot become \(2, 2\)"),
        ("x,label\n1,0\n", "?shape=2x", "'2x' is no shape of a sample; write it as 1x28x28"),
        (
            "x,label\n1,0\n",
            "?colour=red",
            "takes label, target, owner, features, ignore, text, shape, classes behind a '\\?'.*, and no 'colour'.$",
        ),
        ("x,label\n1,0\n", "?targets=x", "and no 'targets'. Did you mean 'target'"),
        ("x,label\n1,0\n", "?ignore=y", "has no column 'y' among its columns: x, label.$"),
        ("x,label\n1,0\n", "?ignore=labels", "has no column 'labels' .* Did you mean 'label'"),
        ("x,label\n1,0\n", "?ignore=x", "has no column but 'label, x'; there is nothing to learn from"),
        ("x,label\n1,0\n", "?features=x&ignore=label", "has features or columns to ignore, not both"),
        ("x,label\n1,0\n", "?classes=/nowhere", "class names cannot be read from '/nowhere'"),
    ],
)
def test_csv_that_is_refused(tmp_path: Path, content: str, options: str, sentence: str) -> None:
    path = write(tmp_path / "a.csv", content)
    assert re.search(sentence, refusal(f"csv:{path}{options}"))


def test_files_that_are_not_there_or_no_text(tmp_path: Path) -> None:
    assert refusal(f"csv:{tmp_path}/none.csv").endswith("none.csv' cannot be read: No such file or directory.")
    (tmp_path / "b.csv").write_bytes(b"x,label\n\xff,1\n")
    assert "is no UTF-8 text: byte 8" in refusal(f"csv:{tmp_path}/b.csv")
    assert "has no path" in refusal("csv:")


_Names = st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=4, unique=True)
_Floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(_Names.filter(lambda names: "label" not in names), st.data())
def test_csv_gives_what_was_written(names: list[str], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(_Floats, min_size=len(names), max_size=len(names)), max_size=5))
    labels = data.draw(st.lists(st.integers(0, 10**9 - 1), min_size=len(rows), max_size=len(rows)))
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow([*names, "label"])
    writer.writerows([*row, label] for row, label in zip(rows, labels, strict=True))
    x, y, lines = decode_csv(file.getvalue(), "f", Columns("label"))[:3]
    assert x.tolist() == rows
    assert y.tolist() == labels
    assert len(lines) == len(rows)


@given(st.text(st.sampled_from('x,label\n\r"01.-e \0'), max_size=60), st.booleans())
def test_csv_of_any_text_is_read_or_refused(text: str, headed: bool) -> None:
    with suppress(DataError):
        x, y, lines = decode_csv(("x,label\n" if headed else "") + text, "f", Columns("label"))[:3]
        assert len(x) == len(y) == len(lines)
        assert np.isfinite(x).all()
        assert (y >= 0).all()


# --- npz


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.full((2, 1, 2), 51, np.uint8), y=np.array([3, 1], np.int16))
    samples = opened(f"npz:{path}")
    assert samples.x.tolist() == [[[np.float32(0.2)] * 2]] * 2
    assert samples.y.tolist() == [3, 1]
    np.savez_compressed(path, x=np.array([[1, 2], [3, 4]]), y=np.array([[2, 3], [4, 5]], np.uint8))
    assert opened(f"npz:{path}").x.dtype == opened(f"npz:{path}").y.dtype == np.int64


def test_npz_that_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK\x03\x04 and no more")
    assert "is no .npz file with the array y, and x or inputs by name" in refusal(f"npz:{path}")
    np.savez(path, x=np.zeros((2, 2)))
    assert "is no .npz file with the array y, and x or inputs by name: it has x" in refusal(f"npz:{path}")
    np.savez(path, x=np.array([{}, {}]), y=np.array([1, 2]))
    assert "Object arrays cannot be loaded" in refusal(f"npz:{path}")
    np.savez(path, x=np.zeros((3, 2)), y=np.array([1, 2, 3]))
    whole = path.read_bytes()
    for n in range(0, len(whole), 7):
        path.write_bytes(whole[:n])
        refusal(f"npz:{path}")


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        ([[1.0], [2.0]], [1], r"x of shape \(2, 1\) and y of shape \(1,\)"),
        (1.0, 1, "both need as many samples"),
        ([], [], "holds no samples"),
        ([[1.0], [np.inf]], [0, 0], "a value that is not a finite number in sample 1"),
        ([[1e39]], [0], "not a finite number in sample 0"),
        ([[5], [-1]], [0, 0], "a token below 0 in sample 1"),
        ([[1.0]], [-1], "a class below 0 in sample 0"),
        ([[1.0]], [np.nan], "a target that is not a finite number in sample 0"),
        ([[1.0]], [True], "y in bool"),
        ([["a"]], [0], "x in <U1; it takes numbers"),
        ([[1.0], [1.0, 2.0]], [0, 0], "gives no array as x"),
    ],
)
def test_arrays_that_are_no_samples(x: object, y: object, sentence: str) -> None:
    with pytest.raises(DataError, match=f"^It .*{sentence}.*\\.$"):
        checked_samples(x, y, "It")


# --- idx


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def test_idx(tmp_path: Path) -> None:
    images, labels = np.arange(24).reshape(2, 3, 4), np.array([9, 0])
    (tmp_path / "x").write_bytes(gzip.compress(idx(images)))
    (tmp_path / "y").write_bytes(idx(labels))
    spec = f"idx:{tmp_path}/x?labels={tmp_path}/y"
    samples = opened(spec)
    assert samples.x.shape == (2, 1, 3, 4)
    assert samples.x.tobytes() == (images.astype(np.float32) / np.float32(255)).tobytes()
    assert samples.y.tolist() == [9, 0]
    assert opened(f"{spec}&shape=12").x.shape == (2, 12)
    assert "cannot become (5,)" in refusal(f"{spec}&shape=5")
    assert "required field `labels`" in refusal(f"idx:{tmp_path}/x")
    assert "where one class an image belongs" in refusal(f"idx:{tmp_path}/x?labels={tmp_path}/x")


@given(st.binary(max_size=40), st.sampled_from([b"", b"\0\0\x08", b"\0\0\x08\x03"]), st.booleans())
def test_an_idx_file_of_any_bytes_is_read_or_refused(tail: bytes, head: bytes, packed: bool) -> None:
    content = gzip.compress(head + tail) if packed else head + tail
    with suppress(DataError):
        shape = idx_shape(content, where="f")
        assert decode_idx(content, shape, where="f").shape == shape


def test_an_idx_file_cannot_announce_more_than_it_can_hold() -> None:
    head = struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3)
    for content in (head + b"abc", gzip.compress(head + b"abc")):
        with pytest.raises(DataError, match="cannot hold the"):
            idx_shape(content, where="f")


# --- all of them


def test_own_files_give_the_bits_of_the_data_set_they_are_of(tmp_path: Path) -> None:
    digits = opened("digits:0/10")
    np.savez(tmp_path / "own.npz", x=digits.x, y=digits.y)
    head = ",".join(["label", *(f"p{i}" for i in range(64))])
    table = np.column_stack([digits.y, digits.x.reshape(-1, 64)])
    np.savetxt(tmp_path / "own.csv", table, delimiter=",", header=head, comments="", fmt=["%d", *["%.9g"] * 64])
    for spec in (f"npz:{tmp_path}/own.npz", f"csv:{tmp_path}/own.csv?shape=1x8x8"):
        own = opened(spec)
        assert (own.x.dtype, own.x.shape, own.x.tobytes()) == (digits.x.dtype, digits.x.shape, digits.x.tobytes())
        assert own.y.tobytes() == digits.y.tobytes()


# --- images


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (4, 2)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def test_a_folder_of_images(tmp_path: Path) -> None:
    picture(tmp_path / "2" / "b.png", (255, 0, 51))
    picture(tmp_path / "2" / "a.bmp", (0, 0, 0), (40, 20))
    picture(tmp_path / "10" / "c.jpg", (255, 255, 255))
    write(tmp_path / "2" / ".hidden", "no picture")
    samples = opened(f"images:{tmp_path}?shape=3x2x4")
    assert samples.x.shape == (3, 3, 2, 4)
    assert samples.y.tolist() == [2, 2, 10]
    assert samples.x[1, :, 0, 0].tolist() == [1, 0, np.float32(0.2)]
    assert opened(f"images:{tmp_path}?shape=1x2x2").x.shape == (3, 1, 2, 2)
    names = write(tmp_path / "names.txt", "x\n10\ny\n2\n")
    named = opened(f"images:{tmp_path}?shape=1x1x1&classes={names}")
    assert named.y.tolist() == [1, 3, 3]
    assert named.class_names == tuple(names.read_text().split())


def test_images_that_are_refused(tmp_path: Path) -> None:
    spec = f"images:{tmp_path}?shape=3x2x4"
    assert "holds no images: it takes a subfolder a class" in refusal(spec)
    picture(tmp_path / "cat" / "a.png", (0, 0, 0))
    assert "/cat' is no class from 0; for names of classes give classes=FILE" in refusal(spec)
    names = write(tmp_path / "names.txt", "dog\n")
    assert "/cat' is none of the 1 class names" in refusal(f"{spec}&classes={names}")
    write(tmp_path / "names.txt", "cat\n")
    write(tmp_path / "cat" / "notes.txt", "no picture")
    assert "/cat/notes.txt' cannot be read as an image: cannot identify" in refusal(f"{spec}&classes={names}")
    whole = (tmp_path / "cat" / "a.png").read_bytes()
    (tmp_path / "cat" / "notes.txt").write_bytes(whole[:-20])
    assert "/cat/notes.txt' cannot be read as an image: " in refusal(f"{spec}&classes={names}")
    Image.fromarray(np.zeros((2, 2), np.uint16)).save(tmp_path / "cat" / "notes.txt", format="PNG")
    assert "has more than 8 bits a pixel" in refusal(f"{spec}&classes={names}")
    assert "write 1xHxW for grey or 3xHxW" in refusal(f"images:{tmp_path}?shape=2x2x4")
    assert "folder '/nowhere' cannot be read" in refusal("images:/nowhere?shape=1x2x2")


def test_an_image_that_claims_pixels_without_end_is_refused_undecoded(tmp_path: Path) -> None:
    """A file like this, of 39 bytes, took a fuzzer's machine two seconds and 444 MB."""
    (tmp_path / "0").mkdir()
    header = b"GIF87a\x10\x27\x10\x27\0\0\0"  # 10,000 x 10,000
    frame = b",\0\0\0\0\x04\0\x04\0\0\x08\t\0\x01\x08H\xb0 \x80\x80\0;"
    (tmp_path / "0" / "a.gif").write_bytes(header + frame)
    said = refusal(f"images:{tmp_path}?shape=3x2x4")
    assert "a.gif' has 100,000,000 pixels, and 67,108,864 is the most: scale it down" in said


# --- text


def test_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "To be, or not to be\n" * 9)
    samples = opened(f"text:{path}?vocabulary=shakespeare")
    assert samples.x.shape == samples.y.shape == (2, 80)
    assert samples.x[0, 1:].tolist() == samples.y[0, :-1].tolist()
    samples = opened(f"text:{path}?vocabulary=bytes&length=6")
    assert bytes(samples.x[1].tolist()) == b" or no"
    assert bytes(samples.y[1].tolist()) == b"or not"


def test_text_by_words_of_a_data_set(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "the xyzzyx of the " * 9)
    try:
        samples = opened(f"text:{path}?vocabulary=wikitext-2&length=4")
    except DataError:
        pytest.skip("EDGE_FL_DATA names no folder with wikitext-2")
    the, unknown, of, again = samples.x[0]
    assert again == the
    assert len({the, unknown, of}) == 3
    assert 0 <= samples.x.min() <= samples.x.max() < 33_278


def test_text_that_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "Short.")
    assert "leave length= out, or give a vocabulary=" in refusal(f"text:{path}?length=4")
    assert "has 8 tokens, and a sequence of 80 needs one more" in refusal(f"text:{path}?vocabulary=shakespeare")
    assert "'mnist' has no vocabulary; shakespeare and wikitext-2 have" in refusal(f"text:{path}?vocabulary=mnist")
    assert "cannot have -1 tokens" in refusal(f"text:{path}?vocabulary=bytes&length=-1")
    assert "Expected `int`" in refusal(f"text:{path}?vocabulary=bytes&length=long")
    assert "holds no text" in refusal(f"text:{write(path, '')}?vocabulary=bytes")


# --- the user's Python


def test_python(tmp_path: Path) -> None:
    write(tmp_path / "beside.py", "ROWS = 2\n")
    path = write(
        tmp_path / "mine.py",
        textwrap.dedent("""
        import numpy as np
        from dataclasses import dataclass

        calls = 0

        @dataclass
        class Sensor:
            name: "str"

        def read():
            from beside import ROWS
            global calls
            calls += 1
            return np.zeros((ROWS * calls, 3)), [0] * ROWS * calls
        """),
    )
    source = open_source(f"python:{path}:read")
    assert [len(source.samples().y) for _ in range(3)] == [2, 4, 6]
    assert "cannot be loaded" not in refusal(f"python:{path}:other")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("def read():\n    raise OSError('the sensor\\nis gone')", "read' raised OSError: the sensor is gone."),
        ("def read():\n    raise SystemExit", "read' raised SystemExit"),
        ("def read():\n    return 5", "is an object of type 'int', not a pair"),
        ("def read():\n    return [[1.0]], [0.5, 1.0]", "both need as many samples"),
        ("read = 5", "mine.py:read' is no function"),
        ("write = 5", "mine.py' has no 'read'"),
        ("1 / 0", "mine.py' cannot be imported: ZeroDivisionError: division by zero."),
        ("exit(3)", "cannot be imported: SystemExit: 3."),
        ("def", "cannot be imported: SyntaxError"),
    ],
)
def test_python_that_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    assert sentence in refusal(f"python:{write(tmp_path / 'mine.py', content)}:read")


def test_python_that_is_not_there() -> None:
    assert "There is no Python file 'nowhere.py'" in refusal("python:nowhere.py:read")
    assert "ModuleNotFoundError: No module named 'no_such_module'" in refusal("python:no_such_module:read")
    assert "names no object" in refusal("python:nowhere.py")


# --- what changes


def test_files_are_read_again_when_they_change_and_only_then(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "x,label\n1,0\n")
    source = open_source(f"csv:{path}")
    first = source.samples()
    assert source.samples() is first
    write(path, "x,label\n1,0\n2,1\n")
    assert len(source.samples().y) == 2
    write(path, "x,label\n1,0\nbroken")
    with pytest.raises(DataError, match="line 3"):
        source.samples()
    write(path, "x,label\n1,0\n2,1\n3,1\n")
    assert len(source.samples().y) == 3


def test_a_new_picture_is_seen(tmp_path: Path) -> None:
    picture(tmp_path / "0" / "a.png", (0, 0, 0))
    source = open_source(f"images:{tmp_path}?shape=1x2x2")
    first = source.samples()
    assert source.samples() is first
    picture(tmp_path / "1" / "b.png", (0, 0, 0))
    assert source.samples().y.tolist() == [0, 1]
