"""A Parquet file: ``parquet:readings.parquet?label=state``, with the options of a CSV file. Needs pyarrow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError, said
from edge_fl.data.sources._table import Columns, Decoded, TableSource

__all__ = ["SOURCE", "ParquetSource", "decode_parquet"]


class ParquetSource(TableSource):
    """A sample a row; a column of lists, all of one length, is as many features."""

    def decode(self) -> Decoded:
        """Its rows, in order."""
        return decode_parquet(self.path, self.columns, classes=self.classes)


def decode_parquet(path: Path, columns: Columns, *, classes: Sequence[str] = ()) -> Decoded:
    """Decode the columns of a file that are asked for, and no others.

    Raises
    ------
    DataError
        When pyarrow is not installed, the file is no Parquet, a column is missing or there twice, has gaps, or holds
        no numbers, or a label is no class; the sentence names the file, and the row (from 1) or the column.
    """
    where = f"'{path}'"
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise DataError(
            f"{where} is read by pyarrow, which is missing: pip install 'edge-fl[parquet]'."
        ) from error
    try:
        return _decoded(path, columns, classes, where)
    except DataError:
        raise
    except Exception as error:  # pyarrow has no common base for what it raises on damaged files
        raise DataError(f"{where} cannot be read as Parquet: {said(error)}.") from error


def _decoded(path: Path, columns: Columns, classes: Sequence[str], where: str) -> Decoded:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        head = file.schema_arrow.names
        at = columns.placed(head, where)
        names = [head[i] for i in (*at.features, *at.targets, at.label, at.owner) if i >= 0]
        table = file.read(columns=list(dict.fromkeys(names)))
    held = {name: table.column(name) for name in table.column_names}
    for name, column in held.items():
        if column.null_count:
            row = column.is_null().index(True).as_py() + 1
            raise DataError(f"{where}, row {row}: column '{name}' has no value there.")
    widths: tuple[int, ...] = ()
    if columns.text:
        x: NDArray[Any] = _texts(held[columns.text], columns.text, where)
    else:
        parts = [_numbers(held[head[i]], head[i], where) for i in at.features]
        x, widths = np.hstack(parts), tuple(part.shape[1] for part in parts)
    if columns.targets:
        y: NDArray[Any] = np.hstack([_numbers(held[head[i]], head[i], where) for i in at.targets])
    else:
        y = _classes(held[columns.label], columns.label, classes, where)
    owners = [str(value) for value in held[columns.owner].to_pylist()] if columns.owner else None
    features = tuple(head[i] for i in at.features)
    return Decoded(x, y, range(1, len(y) + 1), owners, features, widths)


def _texts(column: Any, name: str, where: str) -> NDArray[np.object_]:
    from pyarrow import types

    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        raise DataError(f"{where} has {column.type} in column '{name}', which holds no texts.")
    return np.array(column.to_pylist(), dtype=np.object_)


def _numbers(column: Any, name: str, where: str) -> NDArray[np.float32]:
    """``[n, k]``: k is 1 for a column of numbers, and their length for one of lists."""
    from pyarrow import types

    kind, width = column.type, 1
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = np.asarray(column.combine_chunks().value_lengths())
        width = int(lengths[0]) if len(lengths) else 0
        if (lengths != width).any():
            row = int(np.flatnonzero(lengths != width)[0]) + 1
            raise DataError(
                f"{where}, row {row}: its list in column '{name}' is not {width} long, as the first is."
            )
        column = column.combine_chunks().flatten()
        kind = column.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise DataError(
            f"{where} has {kind} in column '{name}', which holds no numbers: leave it out with ignore={name}."
        )
    if column.null_count:
        raise DataError(f"{where} has a list with a gap in column '{name}'.")
    with np.errstate(over="ignore"):  # what is too large is infinite, and refused
        values: NDArray[np.float32] = column.to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, width)
    if not (finite := np.isfinite(values)).all():
        row = int(np.flatnonzero(~finite.all(axis=1))[0]) + 1
        raise DataError(f"{where}, row {row}: what column '{name}' holds is no finite number.")
    return values


def _classes(column: Any, name: str, classes: Sequence[str], where: str) -> NDArray[np.int64]:
    from pyarrow import types

    if types.is_integer(column.type) and not classes:
        labels: NDArray[np.int64] = column.to_numpy().astype(np.int64)
        return labels
    values = [str(value).strip() for value in column.to_pylist()]
    if not classes:
        raise DataError(
            f"{where} has {column.type} in column '{name}', no classes from 0; for names of classes give classes=FILE, "
            "for numbers to learn target=COLUMN."
        )
    number = {each: i for i, each in enumerate(classes)}
    wrong = next((i for i, value in enumerate(values) if value not in number), None)
    if wrong is not None:
        raise DataError(
            f"{where}, row {wrong + 1}: '{values[wrong][:40]}' is none of the {len(classes)} class names."
        )
    return np.array([number[value] for value in values], dtype=np.int64)


SOURCE = ParquetSource
