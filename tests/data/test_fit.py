"""Data that does not fit the model is refused before it is trained on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_fl.core.bundle import Bundle, Manifest
from edge_fl.core.errors import DataError
from edge_fl.core.inputs import Input
from edge_fl.data.fit import fitted as fitted_to
from edge_fl.data.partition import DataSpec, client_samples
from edge_fl.data.registry import Samples
from edge_fl.data.splits import train_samples as train_samples_of


def fitted(samples: Samples, manifest: Manifest) -> Samples:
    return fitted_to(samples, Bundle(Path(), manifest))


def train_samples(data: str, manifest: Manifest) -> Samples:
    return train_samples_of(data, Bundle(Path(), manifest))


def test_data_must_fit_the_model(digits_bundle: Bundle) -> None:
    manifest, digits = digits_bundle.manifest, client_samples(DataSpec.parse("digits"))
    fitted(digits, manifest)
    with pytest.raises(
        DataError,
        match=r"shape \(64,\) in float32, and .*; give x\.reshape\(-1, 1, 8, 8\), of csv: and idx: shape=1x8x8,",
    ):
        fitted(replace(digits, x=digits.x.reshape(-1, 64)), manifest)
    with pytest.raises(DataError, match=r"shape \(1, 28, 28\) in float32, and 'digits-mlp' takes \(1, 8, 8\)"):
        fitted(Samples(np.zeros((3, 1, 28, 28), np.float32), digits.y[:3]), manifest)
    with pytest.raises(DataError, match=r"in int64, and 'digits-mlp' takes \(1, 8, 8\) in float32"):
        fitted(Samples(np.zeros((3, 1, 8, 8), np.int64), digits.y[:3]), manifest)
    tokens = msgspec.structs.replace(manifest, input=Input((1, 8, 8), "int64"))
    with pytest.raises(DataError, match=r"in int64; give tokens as npz: or python:, as tables hold float32"):
        fitted(digits, tokens)
    tokens, given = msgspec.structs.replace(tokens, vocabulary=50), np.zeros((3, 1, 8, 8), np.int64)
    fitted(Samples(given + 49, digits.y[:3]), tokens)
    for wrong in (50, -1):
        with pytest.raises(
            DataError, match=rf"has tokens {wrong} to {wrong}, and 'digits-mlp' knows 0 to 49; make them"
        ):
            fitted(Samples(given + wrong, digits.y[:3]), tokens)
    with pytest.raises(DataError, match=r"targets of shape \(8,\) a sample, and 'digits-mlp' learns \(\)"):
        fitted(Samples(digits.x[:3], np.zeros((3, 8), np.int64)), manifest)
    with pytest.raises(DataError, match="labels 0 to 9, and 'digits-mlp' knows 9 classes"):
        fitted(digits, msgspec.structs.replace(manifest, classes=9))
    with pytest.raises(DataError, match=r"classes, from 0; give labels from 0, y - 1\.$"):
        fitted(Samples(digits.x[:2], np.array([1, 10])), manifest)
    with pytest.raises(DataError, match="labels -1 to -1"):
        fitted(Samples(digits.x[:1], np.array([-1])), manifest)


def one_hot(shape: tuple[int, ...], axis: int) -> np.ndarray[Any, Any]:
    """Targets of ``shape`` whose classes are counted up along ``axis``."""
    y = np.zeros(shape, np.float32)
    rows = np.moveaxis(y, axis, -1).reshape(-1, shape[axis])
    rows = np.eye(shape[axis], dtype=np.float32)[np.arange(len(rows)) % shape[axis]]
    others = [size for at, size in enumerate(shape) if at != axis % len(shape)]
    return np.moveaxis(rows.reshape(*others, shape[axis]), -1, axis)


@pytest.mark.parametrize(
    ("y", "given"),
    [
        (one_hot((3, 10), 1), r"give classes in place of one-hot vectors, y\.argmax\(-1\)"),
        (np.ones((3, 10)), "give data that fit"),  # several classes a sample
        (np.full((3, 10), 0.5), "give data that fit"),
        (np.ones((3, 1), np.int64), r"give them without the axis of one, y\[\.\.\., 0\]"),
        (np.ones((3, 7), np.int64), "give data that fit"),
        (np.array([1.0, 2.0, 9.0]), r"are numbers, and .* give them as whole numbers, y\.astype\('int64'\)"),
        (np.array([1.0, 2.5, 9.0]), "are numbers, and .* give data that fit"),
        (np.array([1.0, 2.0, 1e30]), "are numbers, and .* give data that fit"),
    ],
)
def test_usual_mistakes_with_classes_are_named(y: np.ndarray[Any, Any], given: str, digits_bundle: Bundle) -> None:
    with pytest.raises(DataError, match=given):
        fitted(Samples(np.zeros((3, 1, 8, 8), np.float32), _checked(y)), digits_bundle.manifest)


@pytest.mark.parametrize(
    ("y", "given"),
    [
        (np.ones((3, 1, 8, 8), np.int64), r"give them without the axis of one, y\[:, 0\]"),
        (one_hot((3, 8, 8, 4), -1), r"give classes in place of one-hot vectors, y\.argmax\(-1\)"),
        (one_hot((3, 4, 8, 8), 1), r"give classes in place of one-hot vectors, y\.argmax\(1\)"),
        (np.ones((3, 8, 8)), r"give them as whole numbers, y\.astype\('int64'\)"),
        (np.full((3, 8, 8), -100.0), r"give them as whole numbers, y\.astype\('int64'\)"),
    ],
)
def test_usual_mistakes_with_masks_are_named(y: np.ndarray[Any, Any], given: str, digits_bundle: Bundle) -> None:
    manifest = msgspec.structs.replace(digits_bundle.manifest, target=Input((8, 8), "int64"), classes=4)
    with pytest.raises(DataError, match=given):
        fitted(Samples(np.zeros((3, 1, 8, 8), np.float32), _checked(y)), manifest)


@pytest.mark.parametrize("axis", [1, -1])
def test_one_hot_masks_are_told_apart_where_sides_are_as_many_as_classes(axis: int, digits_bundle: Bundle) -> None:
    manifest = msgspec.structs.replace(digits_bundle.manifest, target=Input((4, 4), "int64"), classes=4)
    y = np.moveaxis(np.eye(4, dtype=np.float32)[np.zeros((3, 4, 4), np.int64)], -1, axis)
    with pytest.raises(DataError, match=rf"y\.argmax\({axis}\)"):
        fitted(Samples(np.zeros((3, 1, 8, 8), np.float32), y), manifest)


def _checked(y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return y.astype(np.float32) if y.dtype.kind == "f" else y


@pytest.mark.parametrize(
    ("given", "taken", "advice"),
    [
        ((8, 8, 3), (3, 8, 8), r"give channels first, as np\.moveaxis\(x, -1, 1\) puts them"),  # numbers would fit
        ((8, 8, 1), (1, 8, 8), r"give x\.reshape\(-1, 1, 8, 8\)"),
        ((4, 8), (8, 4), r"give x\.reshape\(-1, 8, 4\)"),
    ],
)
def test_images_with_channels_last_are_not_taken_as_they_lie(
    given: tuple[int, ...], taken: tuple[int, ...], advice: str, digits_bundle: Bundle
) -> None:
    manifest = msgspec.structs.replace(digits_bundle.manifest, input=Input(taken, "float32"))
    with pytest.raises(DataError, match=advice):
        fitted(Samples(np.zeros((3, *given), np.float32), np.zeros(3, np.int64)), manifest)


def test_whole_numbers_where_a_model_learns_numbers_are_named(digits_bundle: Bundle) -> None:
    manifest = msgspec.structs.replace(digits_bundle.manifest, target=Input((2,), "float32"), loss="mse")
    with pytest.raises(DataError, match=r"are classes, .* give them as floats, y\.astype\('float32'\)"):
        fitted(Samples(np.zeros((3, 1, 8, 8), np.float32), np.ones((3, 2), np.int64)), manifest)


def test_class_names_of_data_and_model_stand_in_one_order(digits_bundle: Bundle) -> None:
    """Swapped names would train in silence, and learn the wrong classes."""
    digits, names = client_samples(DataSpec.parse("digits")), tuple("abcdefghij")
    manifest = msgspec.structs.replace(digits_bundle.manifest, class_names=names)
    fitted(digits, manifest)
    fitted(replace(digits, class_names=names), manifest)
    fitted(replace(digits, class_names=names[::-1]), digits_bundle.manifest)
    with pytest.raises(DataError, match="class 1 is 'c', and 'digits-mlp' has 'b' there"):
        fitted(replace(digits, class_names=(*"acb", *names[3:])), manifest)
    with pytest.raises(DataError, match="class 9 is none, and 'digits-mlp' has 'j' there"):
        fitted(replace(digits, class_names=names[:9]), manifest)


def test_columns_are_read_in_the_models_order(digits_bundle: Bundle, tmp_path: Path) -> None:
    manifest = msgspec.structs.replace(
        digits_bundle.manifest, input=Input((2,), "float32"), columns=("speed", "load")
    )
    table = tmp_path / "table.csv"
    table.write_text("load,day,label,speed\n1,9,0,2\n3,9,1,4\n")

    samples = train_samples(f"csv:{table}", manifest)
    assert samples.x.tolist() == [[2, 1], [4, 3]]
    assert fitted(samples, manifest) is samples
    with pytest.raises(DataError, match="no column 'load', which the model reads"):
        train_samples(f"csv:{table}?ignore=load", manifest)
    with pytest.raises(DataError, match=r"shape \(3,\)"):
        train_samples(f"csv:{table}", msgspec.structs.replace(manifest, columns=()))
