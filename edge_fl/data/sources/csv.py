"""A CSV file: ``csv:readings.csv?label=state``. Its first line names the columns."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError
from edge_fl.data.class_names import read_class_names
from edge_fl.data.registry import Samples
from edge_fl.data.sequences import decode_text
from edge_fl.data.sources.base import FileSource, checked_samples, parse_shape, read_content, split_argument

__all__ = ["SOURCE", "CsvSource", "decode_csv"]

_CLASS = re.compile(r"\s*[0-9]{1,9}\s*", re.ASCII)
_BYTE_ORDER_MARK = "\ufeff"  # spreadsheets write one


class CsvOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is where.

    Parameters
    ----------
    label
        The column of the class.
    features
        The columns of the input, in order, with commas between them; all others of the file where it is empty.
    shape
        Of one sample; a vector where it is empty.
    classes
        A file of class names, one a line, where the label is a name; else it is a number from 0.
    """

    label: str = "label"
    features: str = ""
    shape: str = ""
    classes: str = ""


class CsvSource(FileSource):
    """A sample a line."""

    def __init__(self, argument: str) -> None:
        path, options = split_argument(argument, CsvOptions)
        super().__init__(path)
        self._label = options.label
        self._features = options.features.split(",") if options.features else []
        self._shape = parse_shape(options.shape) if options.shape else None
        self._classes = read_class_names(Path(options.classes) if options.classes else None)

    def files(self) -> list[Path]:
        """The one file."""
        return [self.path]

    def read(self) -> Samples:
        """Its lines, in order."""
        where = f"'{self.path}'"
        text = decode_text(read_content(self.path), str(self.path)).removeprefix(_BYTE_ORDER_MARK)
        x, y, lines = decode_csv(text, where, label=self._label, features=self._features, classes=self._classes)
        if self._shape is not None:
            if np.prod(self._shape) != x.shape[1]:
                raise DataError(f"{where} has {x.shape[1]} features a line, which cannot become {self._shape}.")
            x = x.reshape(len(x), *self._shape)
        return checked_samples(x, y, where, place=lambda sample: f"line {lines[sample]}")


def decode_csv(
    text: str, where: str, *, label: str, features: Sequence[str] = (), classes: Sequence[str] = ()
) -> tuple[NDArray[np.float32], NDArray[np.int64], list[int]]:
    """Decode CSV as spreadsheets write it: commas, and quotes around what holds one.

    Returns
    -------
    ``[n, features]``, ``[n]``, and the line of each.

    Raises
    ------
    DataError
        When a column is missing or there twice, a line has another number of cells, a feature is no number, or a label
        no class; ``where`` names the file.
    """
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    x, y, lines = [], [], []
    try:
        head = next(rows, [])
        columns, at = _columns(head, label, features, where)
        for row in filter(None, rows):
            place = f"{where}, line {rows.line_num}"
            if len(row) != len(head):
                raise DataError(f"{place}: it has {len(row)} cells, and the first line names {len(head)}.")
            x.append(_numbers(row, columns, head, place))
            y.append(_class(row[at], classes, place))
            lines.append(rows.line_num)
    except csv.Error as error:
        raise DataError(f"{where}, line {rows.line_num}: it is no CSV ({error}).") from error
    inputs = np.stack(x) if x else np.empty((0, len(columns)), dtype=np.float32)
    return inputs, np.array(y, dtype=np.int64), lines


def _columns(head: Sequence[str], label: str, features: Sequence[str], where: str) -> tuple[list[int], int]:
    """Where the features are, and where the label is."""
    wanted = features or [name for name in head if name != label]
    for name in (label, *wanted):
        if head.count(name) != 1:
            often = "no column" if name not in head else f"{head.count(name)} columns"
            raise DataError(f"{where} has {often} '{name}' in its first line: {', '.join(head)[:120]}.")
    if not wanted:
        raise DataError(f"{where} has no column but '{label}'; there is nothing to learn from.")
    return [head.index(name) for name in wanted], head.index(label)


def _numbers(row: Sequence[str], columns: Sequence[int], head: Sequence[str], place: str) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # what is too large is infinite, and refused
            values = np.array([float(row[i]) for i in columns], dtype=np.float32)
    except ValueError:
        wrong = next(i for i in columns if not _is_number(row[i]))
    else:
        if np.isfinite(values).all():
            return values
        wrong = columns[int(np.flatnonzero(~np.isfinite(values))[0])]
    raise DataError(f"{place}: '{row[wrong][:40]}' in column '{head[wrong]}' is no finite number.")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _class(cell: str, classes: Sequence[str], place: str) -> int:
    if classes:
        if cell.strip() not in classes:
            raise DataError(f"{place}: '{cell[:40]}' is none of the {len(classes)} class names.")
        return classes.index(cell.strip())
    if not _CLASS.fullmatch(cell):
        raise DataError(f"{place}: '{cell[:40]}' is no class from 0; for names of classes give classes=FILE.")
    return int(cell)


SOURCE = CsvSource
