"""Data as a bundle's model takes it: its columns in order, and a sentence where the two do not fit."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from edge_fl.core.batch import LEFT_OUT
from edge_fl.core.bundle import CLASS_INDEX, Bundle, Manifest
from edge_fl.core.errors import DataError, printable
from edge_fl.core.inputs import Input
from edge_fl.data.hints import inputs_that_fit, labels_that_fit, targets_that_fit
from edge_fl.data.inputs_by_name import with_inputs, without_name
from edge_fl.data.registry import Samples

__all__ = ["arranged", "fitted", "fitted_but_texts", "prepared"]

_LEFT_OUT_HINT = f", with {LEFT_OUT} where there is no class"
_NUMBER = Input((1,), "float32")
_EVERY_POSITION = ("masked_cross_entropy", "sequence_cross_entropy")
"""Losses that take a class for every target."""


def fitted(samples: Samples, bundle: Bundle) -> Samples:
    """The samples as the bundle's model takes and learns them; the same object where nothing is to be done.

    Raises
    ------
    DataError
        For samples of another shape or dtype, without a column or an input, or whose classes are not the model's.
    RuntimeMissingError, BundleError
        As :func:`edge_fl.data.tokenizer.tokenized`, for texts.
    """
    return _with_targets(prepared(samples, bundle), bundle.manifest)


def _with_targets(samples: Samples, manifest: Manifest) -> Samples:
    """The samples with targets that the model learns; raises DataError as :func:`fitted`.

    One number a sample becomes ``[n, 1]``, a whole one, too. Classes of which three or more have names are no numbers.
    """
    if manifest.target == _NUMBER and samples.y.ndim == 1 and len(samples.class_names) < 3:
        samples = replace(samples, y=samples.y.astype(np.float32, copy=False)[:, None])
    _check_targets(samples, manifest)
    return samples


def fitted_but_texts(samples: Samples, bundle: Bundle) -> Samples:
    """The same for whoever does not trust the bundle's tokenizer with its own process: texts stay texts.

    Their targets are checked where they have some; raises DataError as :func:`fitted`.
    """
    if not samples.are_texts:
        return fitted(samples, bundle)
    reads_texts(bundle.manifest)
    with_targets = not samples.are_continued or bundle.manifest.target == CLASS_INDEX
    return _with_targets(samples, bundle.manifest) if with_targets else samples


def prepared(samples: Samples, bundle: Bundle) -> Samples:
    """The same, whatever their targets are."""
    manifest = bundle.manifest
    if samples.are_texts:
        from edge_fl.data.tokenizer import tokenized

        reads_texts(manifest)
        samples = tokenized(samples, bundle)
    samples = arranged(samples, manifest.columns)
    if manifest.inputs:
        samples = with_inputs(samples, manifest.inputs)
    elif samples.inputs:
        samples = without_name(samples)
    _check_inputs(samples, manifest)
    return samples


def arranged(samples: Samples, columns: Sequence[str]) -> Samples:
    """The samples with ``columns`` alone, in that order, where both say which they have; DataError where one lacks."""
    held = samples.columns
    if not held or not columns or held == tuple(columns):
        return samples
    places = {name: place for place, name in enumerate(held)}
    missing = next((name for name in columns if name not in places), None)
    if missing is not None:
        raise DataError(
            f"The data has no column {_named(missing)}, which the model reads: name the column so, or give other data."
        )
    return replace(samples, x=samples.x[:, [places[name] for name in columns]], columns=tuple(columns))


def reads_texts(manifest: Manifest) -> None:
    """Raise DataError where a model reads no texts."""
    if manifest.tokenizer is None and manifest.inputs:
        taken = ", ".join(each.name for each in manifest.inputs)
        raise DataError(
            f"The data are texts, and '{manifest.name}' takes {taken}: give arrays or columns of that name."
        )
    if manifest.tokenizer is None:
        raise DataError(
            f"The data are texts, and '{manifest.name}' has no tokenizer: export it with --tokenizer, or give tokens "
            "(text: with a vocabulary=)."
        )


def _numbers_for_tokens(given: tuple[tuple[int, ...], str], taken: tuple[tuple[int, ...], str]) -> bool:
    return given == (taken[0], "float32") and taken[1] == "int64"


def _check_inputs(samples: Samples, manifest: Manifest) -> None:
    given, taken = (samples.x.shape[1:], samples.x.dtype.name), (manifest.input.shape, manifest.input.dtype)
    if given != taken:
        if _numbers_for_tokens(given, taken):
            fitting = "tokens as npz: or python:, as tables hold float32"
        elif given[1] == taken[1]:
            fitting = inputs_that_fit(given[0], taken[0], tokens=taken[1] == "int64")
        else:
            fitting = "data that fit"
        raise DataError(
            f"The data has samples of shape {given[0]} in {given[1]}, and '{manifest.name}' takes {taken[0]} in "
            f"{taken[1]}; give {fitting}."
        )
    last = manifest.vocabulary - 1
    if last >= 0 and samples.x.size and not 0 <= samples.x.min() <= samples.x.max() <= last:
        raise DataError(
            f"The data has tokens {samples.x.min()} to {samples.x.max()}, and '{manifest.name}' knows 0 to {last}; "
            "make them with the model's own tokenizer."
        )


def _check_shares(samples: Samples, manifest: Manifest) -> None:
    if (
        manifest.loss == "binary_cross_entropy"
        and samples.y.size
        and not 0 <= samples.y.min() <= samples.y.max() <= 1
    ):
        raise DataError(
            f"The data has targets {samples.y.min():g} to {samples.y.max():g}, and the loss 'binary_cross_entropy' "
            "takes shares from 0 to 1; give data that fit."
        )


def _check_targets(samples: Samples, manifest: Manifest) -> None:
    if samples.y.shape[1:] != manifest.target.shape:
        given = targets_that_fit(samples.y, manifest)
        if manifest.tokenizer:
            classes = manifest.target == CLASS_INDEX
            given = "csv:FILE?text=COLUMN&label=COLUMN" if classes else "text:FILE, each line of which is a sample"
        raise DataError(
            f"The data has targets of shape {samples.y.shape[1:]} a sample, and '{manifest.name}' learns "
            f"{manifest.target.shape}; give {given}."
        )
    if samples.y.dtype.name != manifest.target.dtype:
        kinds = {"int64": "classes", "float32": "numbers"}
        raise DataError(
            f"The data's targets are {kinds[samples.y.dtype.name]}, and '{manifest.name}' learns "
            f"{kinds[manifest.target.dtype]}; give {targets_that_fit(samples.y, manifest)}."
        )
    if manifest.target.dtype == "float32":
        _check_shares(samples, manifest)
        return
    _check_names(samples.class_names, manifest)
    labels = samples.y[samples.y != LEFT_OUT] if samples.y.ndim > 1 else samples.y
    if labels.size and not 0 <= labels.min() <= labels.max() < manifest.classes:
        raise DataError(
            f"The data has labels {labels.min()} to {labels.max()}, and '{manifest.name}' knows "
            f"{manifest.classes} classes, from 0; give {labels_that_fit(labels, manifest.classes)}"
            f"{_LEFT_OUT_HINT if samples.y.ndim > 1 else ''}."
        )
    if labels.size < samples.y.size and manifest.loss in _EVERY_POSITION:
        raise DataError(
            f"The data has positions without a target ({LEFT_OUT}, as where texts are padded), which the loss "
            f"'{manifest.loss}' cannot leave out: export with --loss padded_sequence_cross_entropy."
        )
    if not labels.size and samples.y.size:
        raise DataError("The data has no position with a target: there is nothing to learn from.")


def _check_names(names: tuple[str, ...], manifest: Manifest) -> None:
    """Refuse names that stand elsewhere in the model's list: training would go on, and learn the wrong classes."""
    if not (names and manifest.class_names):
        return
    for i, (given, known) in enumerate(zip_longest(names, manifest.class_names)):
        if given != known:
            raise DataError(
                f"The data's class {i} is {_named(given)}, and '{manifest.name}' has {_named(known)} there; "
                f"give classes=FILE the model's names, in their order: {', '.join(manifest.class_names)[:200]}."
            )


def _named(name: str | None) -> str:
    return "none" if name is None else f"'{printable(name, 40)}'"
