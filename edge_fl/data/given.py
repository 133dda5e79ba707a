"""Samples of whatever a person has: a spec, arrays, or a data set of torch's, torchvision's or Hugging Face's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError, said
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import DataSource, checked_samples, open_source

__all__ = ["samples_of"]

_LABELS = ("label", "labels", "target", "y")


def samples_of(given: Any, where: str = "the data") -> Samples:
    """What ``given`` holds.

    Parameters
    ----------
    given
        Samples; a spec such as ``csv:readings.csv?label=state``; a :class:`DataSource`; a pair ``(x, y)`` of arrays; a
        mapping with ``x``, ``y`` and perhaps ``owner``; a map-style data set of torch or torchvision, whose items are
        pairs; or a data set of Hugging Face with a column of inputs and one of labels.

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
        if not {"x", "y"} <= set(given):
            raise DataError(f"{where} has {', '.join(map(str, given))[:80]}, and no x and y.")
        return checked_samples(given["x"], given["y"], where, owner=given.get("owner"))
    if isinstance(given, tuple) and len(given) == 2:
        return checked_samples(_plain(given[0]), _plain(given[1]), where)
    columns = getattr(given, "column_names", None)
    if columns is not None and hasattr(given, "features"):
        return _of_columns(given, list(columns), where)
    if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
        return _of_items(given, where)
    raise DataError(f"{where} is an object of type '{type(given).__name__}', not a pair (x, y) or a data set.")


def _of_columns(given: Any, columns: Sequence[str], where: str) -> Samples:
    """A Hugging Face data set: its label column, and the one other."""
    label = next((name for name in _LABELS if name in columns), None)
    inputs = [name for name in columns if name != label]
    if label is None or len(inputs) != 1:
        raise DataError(
            f"{where} has the columns {', '.join(columns)[:120]}: keep one of inputs and one called label "
            "(dataset.select_columns), or give a pair (x, y)."
        )
    return _stacked([row[inputs[0]] for row in given], [row[label] for row in given], where)


def _of_items(given: Any, where: str) -> Samples:
    """A map-style data set: pairs of an input and a target."""
    x, y = [], []
    for i in range(len(given)):
        item = given[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"{where} gives an object of type '{type(item).__name__}' as item {i}, not a pair (x, y)."
            )
        x.append(item[0])
        y.append(item[1])
    return _stacked(x, y, where)


def _stacked(x: Sequence[Any], y: Sequence[Any], where: str) -> Samples:
    try:
        inputs, targets = np.stack([_plain(each) for each in x]), np.stack([_plain(each) for each in y])
    except Exception as error:  # whatever the user gave may raise whatever it likes
        raise DataError(f"{where} has items that are not alike: {said(error)}.") from error
    return checked_samples(inputs, targets, where)


def _plain(value: Any) -> NDArray[Any]:
    """An array of an image (channels first), a tensor, or numbers."""
    if hasattr(value, "getbands"):  # PIL
        pixels = np.asarray(value, dtype=np.uint8)
        return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)
    return np.asarray(value.numpy(force=True) if hasattr(value, "numpy") and hasattr(value, "detach") else value)
