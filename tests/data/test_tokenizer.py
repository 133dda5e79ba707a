"""Texts as tokens, by a tokenizer that a bundle carries."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from edge_fl.core.batch import LEFT_OUT
from edge_fl.core.bundle import CLASS_INDEX, SCHEMA, Bundle, Manifest, Program, Tokenizer, parse_manifest
from edge_fl.core.errors import BundleError, DataError
from edge_fl.core.inputs import Input, NamedInput, packed_input
from edge_fl.core.layout import Layout
from edge_fl.data.fit import fitted, fitted_but_texts, prepared
from edge_fl.data.given import samples_of
from edge_fl.data.sources.base import open_source
from edge_fl.data.tokenizer import packed_texts, unpacked_texts

WORDS = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "warm": 4, "cold": 5, "soup": 6}
IDS, MASK, TYPES = (NamedInput(f"{n}", (5,), "int64") for n in ("input_ids", "attention_mask", "token_type_ids"))


def library() -> Library:
    made = Library(WordLevel(WORDS, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return made


def bundle(root: Path, *inputs: NamedInput, target: Input = CLASS_INDEX, **fields: object) -> Bundle:
    manifest = Manifest(
        schema=SCHEMA,
        name="m",
        dataset="",
        classes=7,
        input=packed_input(inputs) if inputs else Input((5,), "int64"),
        target=target,
        loss="cross_entropy",
        layout=Layout((), ()),
        programs={"onnx": (Program("step.onnx", "step", (), ()),)},
        parity={},
        tools={},
        inputs=inputs,
        tokenizer=Tokenizer(pad=0),
    )
    files = {"tokenizer.json": library().to_str().encode(), "step.onnx": b""}
    return Bundle.save(root, msgspec.structs.replace(manifest, **fields), files)


def test_a_text_fills_what_the_model_takes(tmp_path: Path) -> None:
    texts = samples_of((["warm soup", "cold cold cold cold soup", ""], [0, 1, 1]))
    samples = fitted(texts, bundle(tmp_path, MASK, IDS, TYPES))
    np.testing.assert_array_equal(samples.x[:, 5:10], [[2, 4, 6, 3, 0], [2, 5, 5, 5, 3], [2, 3, 0, 0, 0]])
    np.testing.assert_array_equal(samples.x[:, :5], [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    assert not samples.x[:, 10:].any()
    alone = fitted(texts, bundle(tmp_path / "alone"))
    np.testing.assert_array_equal(alone.x, samples.x[:, 5:10])


def test_without_targets_each_token_is_that_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("warm soup\n\n  cold cold cold cold soup \n")
    lines = open_source(f"text:{tmp_path / 'notes.txt'}").samples()
    model = bundle(tmp_path / "b", target=Input((5,), "int64"), loss="padded_sequence_cross_entropy")
    samples = fitted(lines, model)
    np.testing.assert_array_equal(samples.x, [[2, 4, 6, 3, 0], [2, 5, 5, 5, 5]])
    np.testing.assert_array_equal(samples.y, [[4, 6, 3, LEFT_OUT, LEFT_OUT], [5, 5, 5, 5, 3]])
    nothing = lines.take(np.zeros(0, dtype=np.int64))
    assert fitted(nothing, model).y.shape == (0, 5)
    strict = Bundle(model.root, msgspec.structs.replace(model.manifest, loss="sequence_cross_entropy"))
    with pytest.raises(DataError, match="export with --loss padded_sequence_cross_entropy"):
        fitted(lines, strict)
    with pytest.raises(DataError, match="no position with a target"):
        fitted(replace(samples, y=np.full((2, 5), LEFT_OUT)), model)


def test_tables_have_texts(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text('id,review,stars\n1,"warm, warm soup",0\n2,cold,1\n')
    samples = fitted(
        open_source(f"csv:{tmp_path / 'reviews.csv'}?text=review&label=stars").samples(), bundle(tmp_path / "b")
    )
    np.testing.assert_array_equal(samples.x, [[2, 4, 1, 4, 3], [2, 5, 3, 0, 0]])
    with pytest.raises(DataError, match="has a text, which is all of its input"):
        open_source(f"csv:{tmp_path / 'reviews.csv'}?text=review&ignore=id")
    with pytest.raises(DataError, match="no column 'words'"):
        open_source(f"csv:{tmp_path / 'reviews.csv'}?text=words&label=stars").samples()


def test_texts_may_have_numbers_for_targets_with_an_axis_or_without(tmp_path: Path) -> None:
    model = bundle(tmp_path, target=Input((1,), "float32"), loss="mse")
    for numbers in (np.array([1.5, 2]), np.array([[1.5], [2]])):
        texts = samples_of((["warm soup", "cold"], numbers.astype(np.float32)))
        for fit in (fitted, fitted_but_texts):
            np.testing.assert_array_equal(fit(texts, model).y, [[1.5], [2]])


def test_a_parquet_column_is_texts(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"review": ["warm", "cold soup"], "stars": [0, 1], "n": [1, 2]})
    parquet.write_table(table, tmp_path / "r.parquet")
    samples = open_source(f"parquet:{tmp_path / 'r.parquet'}?text=review&label=stars").samples()
    assert samples.x.tolist() == ["warm", "cold soup"]
    with pytest.raises(DataError, match="int64 in column 'n', which holds no texts"):
        open_source(f"parquet:{tmp_path / 'r.parquet'}?text=n&label=stars").samples()


def test_texts_for_a_model_of_tokens_are_refused(tmp_path: Path) -> None:
    plain = Bundle(tmp_path, msgspec.structs.replace(bundle(tmp_path).manifest, tokenizer=None))
    with pytest.raises(DataError, match=r"has no tokenizer: .*, or give tokens \(text: with a vocab"):
        fitted(samples_of((["warm"], [0])), plain)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", library().to_str().encode()[:-40]])
def test_a_damaged_tokenizer_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    damaged = Bundle.save(tmp_path, bundle(tmp_path).manifest, {"tokenizer.json": content, "step.onnx": b""})
    with pytest.raises(BundleError, match=r"tokenizer.json' cannot be used as a tokenizer: "):
        fitted(samples_of((["warm"], [0])), damaged)


def test_a_device_fetches_the_tokenizer_and_a_manifest_must_name_it(tmp_path: Path) -> None:
    made = bundle(tmp_path)
    assert made.manifest.program_files("onnx") == ["step.onnx", "tokenizer.json"]
    files = {name: file for name, file in made.manifest.files.items() if name != "tokenizer.json"}
    raw = msgspec.json.encode(msgspec.structs.replace(made.manifest, files=files))
    with pytest.raises(BundleError, match=r"names no file 'tokenizer.json', which its model of texts needs"):
        parse_manifest(raw, where="m")


def test_texts_alone_are_continued(tmp_path: Path) -> None:
    model = bundle(tmp_path, target=Input((5,), "int64"), loss="padded_sequence_cross_entropy")
    np.testing.assert_array_equal(fitted(samples_of(["warm soup"]), model).y, [[4, 6, 3, LEFT_OUT, LEFT_OUT]])


@pytest.mark.parametrize(
    ("given", "target", "says"),
    [
        (["warm"], Input((), "int64"), "give csv:FILE\\?text=COLUMN&label=COLUMN"),
        ((["warm"], [0]), Input((5,), "int64"), "give text:FILE, each line of which is a sample"),
    ],
)
def test_texts_with_other_targets_say_how_to_give_them(
    tmp_path: Path, given: object, target: Input, says: str
) -> None:
    model = bundle(tmp_path, target=target, loss="padded_sequence_cross_entropy")
    with pytest.raises(DataError, match=says):
        fitted(samples_of(given), model)


@pytest.mark.parametrize(
    "inputs",
    [(MASK,), (IDS, NamedInput("words", (5,), "int64")), (IDS, NamedInput("token_type_ids", (4,), "int64"))],
)
def test_a_manifest_whose_inputs_no_tokenizer_fills_is_refused(
    tmp_path: Path, inputs: tuple[NamedInput, ...]
) -> None:
    with pytest.raises(
        ValueError, match="a tokenizer fills attention_mask, input_ids, token_type_ids, of one length"
    ):
        bundle(tmp_path, *inputs)


def test_texts_cross_to_another_process_as_two_arrays() -> None:
    texts = np.array(["warm", "", "süß \U0001f375", "\ud800"], dtype=np.object_)
    assert unpacked_texts(*packed_texts(texts)).tolist() == ["warm", "", "süß \U0001f375", "?"]
    assert unpacked_texts(*packed_texts(texts[:0])).shape == (0,)


def test_threads_may_read_texts_of_several_lengths_at_once(tmp_path: Path) -> None:
    """A model that continues texts reads one token more than it is given to predict from."""
    lines = samples_of(["warm soup and cold"] * 200)
    model = bundle(tmp_path, target=Input((5,), "int64"), loss="padded_sequence_cross_entropy")
    asked = samples_of((["warm soup and cold"] * 200, [0] * 200))
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda samples: prepared(samples, model).x, [lines, asked] * 8):
            np.testing.assert_array_equal(found[:, :3], [[2, 4, 6]] * 200)


def test_many_texts_are_read_piece_by_piece(tmp_path: Path) -> None:
    texts = samples_of((["warm", "cold soup"] * 300, [0, 1] * 300))
    np.testing.assert_array_equal(fitted(texts, bundle(tmp_path)).x, [[2, 4, 3, 0, 0], [2, 5, 6, 3, 0]] * 300)
