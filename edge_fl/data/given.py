"""Samples of whatever a person has: a spec, arrays, or a data set of torch's, torchvision's or Hugging Face's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError, said
from edge_fl.data.checked import checked_samples
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import DataSource, open_source

__all__ = ["samples_of"]

_LABELS = ("label", "labels", "target", "y")


def samples_of(given: Any, where: str = "the data") -> Samples:
    """What ``given`` holds.

    Parameters
    ----------
    given
        Samples; a spec such as ``csv:readings.csv?label=state``; a :class:`DataSource`; a pair ``(x, y)`` of arrays; a
        mapping with ``x``, ``y`` and perhaps ``owner``; a map-style data set of torch or torchvision, whose items are
        pairs; or a data set of Hugging Face with columns of inputs and one of labels. ``x`` may be a mapping of several
        inputs by name, which a mapping may also have in place of ``x``; ``y`` may be called ``label`` or ``labels``. A
        list of texts alone is for a model that continues them.

    Raises
    ------
    DataError
        When it is none of these, or its values are no samples.
    """
    if isinstance(given, Samples):
        return given
    if isinstance(given, str | Path | DataSource):
        return (given if isinstance(given, DataSource) else open_source(str(given))).samples()
    if isinstance(given, Mapping):
        return _of_mapping({str(name): each for name, each in given.items()}, where)
    if isinstance(given, tuple) and len(given) == 2:
        x = given[0]
        x = {str(name): _plain(each) for name, each in x.items()} if isinstance(x, Mapping) else _plain(x)
        return checked_samples(x, _plain(given[1]), where)
    columns = getattr(given, "column_names", None)
    if columns is not None and hasattr(given, "features"):
        return _of_columns(given, list(columns), where)
    if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
        texts = len(given) > 0 and all(isinstance(each, str) for each in given)
        return _of_texts(given) if texts else _of_items(given, where)
    raise DataError(f"{where} is an object of type '{type(given).__name__}', not a pair (x, y) or a data set.")


def _of_texts(given: Sequence[str]) -> Samples:
    """Texts without targets: each token is the target of the one before."""
    return Samples(np.array(given, dtype=np.object_), np.empty((len(given), 0), dtype=np.int64))


def _of_mapping(given: Mapping[str, Any], where: str) -> Samples:
    """Arrays by name: ``x`` or several inputs, a target, and perhaps ``owner``."""
    label = next((name for name in _LABELS if name in given), None)
    inputs = {name: each for name, each in given.items() if name not in (label, "owner")}
    if label is None or not inputs:
        raise DataError(
            f"{where} has {', '.join(given)[:80]}: it needs x and y, or inputs by name and one array called label."
        )
    if isinstance(inputs.get("x"), Mapping):
        inputs = {str(name): each for name, each in inputs["x"].items()}
    arrays = {name: _plain(each) for name, each in inputs.items()}
    x = arrays["x"] if set(arrays) == {"x"} else arrays
    return checked_samples(x, given[label], where, owner=given.get("owner"))


def _of_columns(given: Any, columns: Sequence[str], where: str) -> Samples:
    """A Hugging Face data set: its label column, and the others, of which a column of texts is alone."""
    label = next((name for name in _LABELS if name in columns), None)
    inputs = [name for name in columns if name != label]
    if label is None or not inputs:
        raise DataError(
            f"{where} has the columns {', '.join(columns)[:120]}: keep those of inputs and one called label "
            "(dataset.select_columns), or give a pair (x, y)."
        )
    rows = list(given)
    y = [row[label] for row in rows]
    if len(inputs) == 1:
        return _stacked([row[inputs[0]] for row in rows], y, where)
    named = {name: _stacked_array([row[name] for row in rows], f"{where}, column '{name}',") for name in inputs}
    return checked_samples(named, _stacked_array(y, where), where)


def _of_items(given: Any, where: str) -> Samples:
    """A map-style data set: pairs of an input and a target."""
    x: list[Any] = []
    y: list[Any] = []
    for i in range(len(given)):
        item = given[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"{where} gives an object of type '{type(item).__name__}' as item {i}, not a pair (x, y)."
                f"{' Give two arrays as a tuple.' if len(given) == 2 else ''}"
            )
        x.append(item[0])
        y.append(item[1])
    if x and all(isinstance(each, Mapping) and each.keys() == x[0].keys() for each in x):
        named = {str(name): _stacked_array([each[name] for each in x], where) for name in x[0]}
        return checked_samples(named, _stacked_array(y, where), where)
    return _stacked(x, y, where)


def _stacked(x: Sequence[Any], y: Sequence[Any], where: str) -> Samples:
    return checked_samples(_stacked_array(x, where), _stacked_array(y, where), where)


def _stacked_array(values: Sequence[Any], where: str) -> NDArray[Any]:
    if values and isinstance(values[0], str):
        return np.array(values, dtype=np.object_)
    try:
        return np.stack([_plain(each) for each in values])
    except Exception as error:  # whatever the user gave may raise whatever it likes
        raise DataError(f"{where} has items that are not alike: {said(error)}.") from error


def _plain(value: Any) -> Any:
    """An array of an image (channels first), a tensor, or numbers; texts as they are."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], str):
        return value
    if hasattr(value, "getbands"):  # PIL
        pixels = np.asarray(value, dtype=np.uint8)
        return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)
    return np.asarray(value.numpy(force=True) if hasattr(value, "numpy") and hasattr(value, "detach") else value)
