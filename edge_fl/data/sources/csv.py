"""A CSV file: ``csv:readings.csv?label=state``, or ``?target=litres``. Its first line names the columns."""

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError
from edge_fl.data.sequences import decode_text
from edge_fl.data.sources._table import Columns, Decoded, TableSource
from edge_fl.data.sources.base import read_content

__all__ = ["SOURCE", "CsvSource", "decode_csv"]

_CLASS = re.compile(r"\s*[0-9]{1,9}\s*", re.ASCII)
_FLAGS = {"true": 1.0, "false": 0.0}
_BYTE_ORDER_MARK = "\ufeff"  # spreadsheets write one


class CsvSource(TableSource):
    """A sample a line."""

    row = "line"

    def decode(self) -> Decoded:
        """Its lines, in order."""
        text = decode_text(read_content(self.path), str(self.path)).removeprefix(_BYTE_ORDER_MARK)
        return decode_csv(text, f"'{self.path}'", self.columns, classes=self.classes)


def decode_csv(text: str, where: str, columns: Columns, *, classes: Sequence[str] = ()) -> Decoded:
    """Decode CSV as spreadsheets write it: commas, and quotes around what holds one.

    Raises
    ------
    DataError
        When a column is missing or there twice, a line has another number of cells, a feature or target is no number,
        or a label no class; ``where`` names the file.
    """
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    owners, lines = [], []
    x: list[Any] = []
    y: list[Any] = []
    try:
        head = next(rows, [])
        at = columns.placed(head, where)
        for row in filter(None, rows):
            place = f"{where}, line {rows.line_num}"
            if len(row) != len(head):
                raise DataError(f"{place}: it has {len(row)} cells, and the first line names {len(head)}.")
            x.append(row[at.features[0]] if columns.text else _numbers(row, at.features, head, place))
            y.append(
                _numbers(row, at.targets, head, place)
                if columns.targets
                else _class(row[at.label], classes, place)
            )
            owners.append(row[at.owner].strip() if columns.owner else "")
            lines.append(rows.line_num)
    except csv.Error as error:
        raise DataError(f"{where}, line {rows.line_num}: it is no CSV ({error}).") from error
    inputs = _as_inputs(x, at.features, columns)
    features = tuple(head[i] for i in at.features)
    return Decoded(inputs, _as_targets(y, columns), lines, owners if columns.owner else None, features)


def _as_inputs(
    x: Sequence[Any], features: Sequence[int], columns: Columns
) -> NDArray[np.float32] | NDArray[np.object_]:
    if columns.text:
        return np.array(x, dtype=np.object_)
    return np.stack(x) if x else np.empty((0, len(features)), dtype=np.float32)


def _as_targets(y: Sequence[Any], columns: Columns) -> NDArray[np.int64] | NDArray[np.float32]:
    if not columns.targets:
        return np.array(y, dtype=np.int64)
    return np.array(y, dtype=np.float32).reshape(len(y), len(columns.targets))


def _numbers(row: Sequence[str], columns: Sequence[int], head: Sequence[str], place: str) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # what is too large is infinite, and refused
            values = np.array([_number(row[i]) for i in columns], dtype=np.float32)
    except ValueError:
        wrong = next(i for i in columns if not _is_number(row[i]))
    else:
        if np.isfinite(values).all():
            return values
        wrong = columns[int(np.flatnonzero(~np.isfinite(values))[0])]
    cell, name = row[wrong][:40], head[wrong]
    raise DataError(
        f"{place}: '{cell}' in column '{name}' is no finite number: mend the line, leave the column out with "
        f"ignore={name}, or say what it is: text={name} for a model of texts, owner={name} for whose a sample is."
    )


def _number(cell: str) -> float:
    """A number, or True and False, as pandas writes flags."""
    flag = _FLAGS.get(cell.strip().lower())
    return float(cell) if flag is None else flag


def _is_number(cell: str) -> bool:
    try:
        _number(cell)
    except ValueError:
        return False
    return True


def _class(cell: str, classes: Sequence[str], place: str) -> int:
    if classes:
        if cell.strip() not in classes:
            raise DataError(f"{place}: '{cell[:40]}' is none of the {len(classes)} class names.")
        return classes.index(cell.strip())
    if not _CLASS.fullmatch(cell):
        raise DataError(
            f"{place}: '{cell[:40]}' is no class from 0; for names of classes give classes=FILE, for numbers to "
            "learn target=COLUMN."
        )
    return int(cell)


SOURCE = CsvSource
