"""A CSV file: ``csv:readings.csv?label=state``, or ``?target=litres``. Its first line names the columns."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError
from edge_fl.data.class_names import read_class_names
from edge_fl.data.registry import Samples
from edge_fl.data.sequences import decode_text
from edge_fl.data.sources.base import FileSource, checked_samples, parse_shape, read_content, split_argument

__all__ = ["SOURCE", "Columns", "CsvSource", "Decoded", "decode_csv"]

_CLASS = re.compile(r"\s*[0-9]{1,9}\s*", re.ASCII)
_BYTE_ORDER_MARK = "\ufeff"  # spreadsheets write one


class CsvOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is where.

    Parameters
    ----------
    label
        The column of the class.
    target
        In place of a class: the columns of the numbers to learn, with commas between them.
    owner
        The column that says whose a sample is, for ``--partition owners``.
    features
        The columns of the input, in order, with commas between them; all others of the file where it is empty.
    shape
        Of one sample; a vector where it is empty.
    classes
        A file of class names, one a line, where the label is a name; else it is a number from 0.
    """

    label: str = ""
    target: str = ""
    owner: str = ""
    features: str = ""
    shape: str = ""
    classes: str = ""


class Placed(NamedTuple):
    """Where the columns are, from 0; ``label`` and ``owner`` mean nothing where there is none."""

    features: list[int]
    targets: list[int]
    label: int
    owner: int


@dataclass(frozen=True)
class Columns:
    """Which column is what: a ``label`` or ``targets``, perhaps an ``owner``, and ``features`` (none: all others)."""

    label: str
    targets: tuple[str, ...] = ()
    owner: str = ""
    features: tuple[str, ...] = ()

    def placed(self, head: Sequence[str], where: str) -> Placed:
        """Find the columns in the first line ``head``; raises DataError when one is missing, or there twice."""
        own = [name for name in (self.label, *self.targets, self.owner) if name]
        wanted = self.features or tuple(name for name in head if name not in own)
        for name in (*own, *wanted):
            if head.count(name) != 1:
                often = "no column" if name not in head else f"{head.count(name)} columns"
                raise DataError(f"{where} has {often} '{name}' in its first line: {', '.join(head)[:120]}.")
        if not wanted:
            raise DataError(f"{where} has no column but '{', '.join(own)}'; there is nothing to learn from.")
        index = {name: at for at, name in enumerate(head)}
        return Placed(
            [index[name] for name in wanted],
            [index[name] for name in self.targets],
            index.get(self.label, -1),
            index.get(self.owner, -1),
        )


class CsvSource(FileSource):
    """A sample a line."""

    def __init__(self, argument: str) -> None:
        path, options = split_argument(argument, CsvOptions)
        super().__init__(path)
        if options.label and options.target:
            raise DataError(f"The data '{argument}' has a label or a target, not both: leave one out.")
        self._columns = Columns(
            label="" if options.target else options.label or "label",
            targets=tuple(filter(None, options.target.split(","))),
            owner=options.owner,
            features=tuple(filter(None, options.features.split(","))),
        )
        self._shape = parse_shape(options.shape) if options.shape else None
        self._classes = read_class_names(Path(options.classes) if options.classes else None)

    def files(self) -> list[Path]:
        """The one file."""
        return [self.path]

    def read(self) -> Samples:
        """Its lines, in order."""
        where = f"'{self.path}'"
        text = decode_text(read_content(self.path), str(self.path)).removeprefix(_BYTE_ORDER_MARK)
        decoded = decode_csv(text, where, self._columns, classes=self._classes)
        x = decoded.x
        if self._shape is not None:
            if np.prod(self._shape) != x.shape[1]:
                raise DataError(f"{where} has {x.shape[1]} features a line, which cannot become {self._shape}.")
            x = x.reshape(len(x), *self._shape)
        lines = decoded.lines
        return checked_samples(x, decoded.y, where, place=lambda i: f"line {lines[i]}", owner=decoded.owners)


class Decoded(NamedTuple):
    """``[n, features]``, ``[n]`` or ``[n, targets]``, the line of each, and whose each is where a column says so."""

    x: NDArray[np.float32]
    y: NDArray[np.int64] | NDArray[np.float32]
    lines: list[int]
    owners: list[str] | None


def decode_csv(text: str, where: str, columns: Columns, *, classes: Sequence[str] = ()) -> Decoded:
    """Decode CSV as spreadsheets write it: commas, and quotes around what holds one.

    Raises
    ------
    DataError
        When a column is missing or there twice, a line has another number of cells, a feature or target is no number,
        or a label no class; ``where`` names the file.
    """
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    x, owners, lines = [], [], []
    y: list[Any] = []
    try:
        head = next(rows, [])
        at = columns.placed(head, where)
        for row in filter(None, rows):
            place = f"{where}, line {rows.line_num}"
            if len(row) != len(head):
                raise DataError(f"{place}: it has {len(row)} cells, and the first line names {len(head)}.")
            x.append(_numbers(row, at.features, head, place))
            y.append(
                _numbers(row, at.targets, head, place)
                if columns.targets
                else _class(row[at.label], classes, place)
            )
            owners.append(row[at.owner].strip() if columns.owner else "")
            lines.append(rows.line_num)
    except csv.Error as error:
        raise DataError(f"{where}, line {rows.line_num}: it is no CSV ({error}).") from error
    inputs = np.stack(x) if x else np.empty((0, len(at.features)), dtype=np.float32)
    return Decoded(inputs, _as_targets(y, columns), lines, owners if columns.owner else None)


def _as_targets(y: Sequence[Any], columns: Columns) -> NDArray[np.int64] | NDArray[np.float32]:
    if not columns.targets:
        return np.array(y, dtype=np.int64)
    return np.array(y, dtype=np.float32).reshape(len(y), len(columns.targets))


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
