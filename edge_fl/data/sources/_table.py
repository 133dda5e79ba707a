"""What tables have in common: columns that are a class, targets, an owner or features."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError
from edge_fl.core.inputs import NamedInput
from edge_fl.core.spelling import meant
from edge_fl.data.checked import checked_samples
from edge_fl.data.class_names import read_class_names
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import FileSource, parse_shape, split_argument

__all__ = ["Columns", "Decoded", "Placed", "TableSource"]

_AT_EACH_END, _LONGEST_NAME = 4, 40  # of the columns that a sentence names


class TableOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    ignore
        In place of ``features``: the columns that are no input, with commas between them.
    text
        In place of features: the column of a text, which the bundle's tokenizer makes the input.
    shape
        Of one sample; a vector where it is empty.
    classes
        A file of class names, one a line, where the label is a name; else it is a number from 0.
    """

    label: str = ""
    target: str = ""
    owner: str = ""
    features: str = ""
    ignore: str = ""
    text: str = ""
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
    """Which column is what: a ``label`` or ``targets``, perhaps an ``owner``, and ``features``.

    Without ``features`` these are all others but those to ``ignore``. Where there is a ``text``, it is the one feature.
    """

    label: str
    targets: tuple[str, ...] = ()
    owner: str = ""
    features: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    text: str = ""

    def placed(self, head: Sequence[str], where: str) -> Placed:
        """Find the columns among the names ``head``; raises DataError when one is missing, or there twice."""
        own = [name for name in (self.label, *self.targets, self.owner) if name]
        other = {*own, *self.ignore}
        wanted = ((self.text,) if self.text else self.features) or tuple(
            name for name in head if name not in other
        )
        for name in (*own, *self.ignore, *wanted):
            if head.count(name) != 1:
                often = "no column" if name not in head else f"{head.count(name)} columns"
                spelt = "" if name in head else meant(name, head)
                raise DataError(f"{where} has {often} '{name}' among its columns: {_shown(head)}.{spelt}")
        if not wanted:
            raise DataError(
                f"{where} has no column but '{', '.join(sorted(other))}'; there is nothing to learn from."
            )
        index = {name: at for at, name in enumerate(head)}
        return Placed(
            [index[name] for name in wanted],
            [index[name] for name in self.targets],
            index.get(self.label, -1),
            index.get(self.owner, -1),
        )


class Decoded(NamedTuple):
    """``[n, F]`` or ``[n]`` texts, ``[n]`` or ``[n, targets]``, each row's number, and whose each is.

    ``owners`` is None where no column says so. ``features`` are the columns' names, and ``widths`` how many numbers
    each has in a row, where one has several.
    """

    x: NDArray[np.float32] | NDArray[np.object_]
    y: NDArray[np.int64] | NDArray[np.float32]
    rows: Sequence[int]
    owners: list[str] | None
    features: tuple[str, ...]
    widths: tuple[int, ...] = ()


class TableSource(FileSource):
    """A sample a row of one file.

    Parameters
    ----------
    argument
        ``PATH?OPTION=VALUE&OPTION=VALUE``, the fields of :class:`TableOptions`.
    """

    row: ClassVar[str] = "row"
    """What an error calls one."""

    def __init__(self, argument: str) -> None:
        path, options = split_argument(argument, TableOptions)
        super().__init__(path)
        if options.label and options.target:
            raise DataError(f"The data '{argument}' has a label or a target, not both: leave one out.")
        if options.features and options.ignore:
            raise DataError(f"The data '{argument}' has features or columns to ignore, not both: leave one out.")
        if options.text and (options.features or options.ignore or options.shape):
            raise DataError(
                f"The data '{argument}' has a text, which is all of its input: leave the other columns out."
            )
        self.columns = Columns(
            label="" if options.target else options.label or "label",
            targets=tuple(filter(None, options.target.split(","))),
            owner=options.owner,
            features=tuple(filter(None, options.features.split(","))),
            ignore=tuple(filter(None, options.ignore.split(","))),
            text=options.text,
        )
        self._shape = parse_shape(options.shape) if options.shape else None
        self.classes = read_class_names(Path(options.classes) if options.classes else None)

    @abstractmethod
    def decode(self) -> Decoded:
        """What the file's columns hold; raises DataError, which names the file, and the row that is wrong."""

    def files(self) -> list[Path]:
        """The one file."""
        return [self.path]

    def read(self) -> Samples:
        """Its rows, in order."""
        where, decoded = f"'{self.path}'", self.decode()
        x = decoded.x
        if self._shape is not None:
            if np.prod(self._shape) != x.shape[1]:
                raise DataError(
                    f"{where} has {x.shape[1]} features a {self.row}, which cannot become {self._shape}; "
                    "give another shape=, or leave columns out with ignore=COLUMN,COLUMN."
                )
            x = x.reshape(len(x), *self._shape)
        rows = decoded.rows
        lists = any(width > 1 for width in decoded.widths)
        samples = checked_samples(
            x,
            decoded.y,
            where,
            place=lambda i: f"{self.row} {rows[i]}",
            owner=decoded.owners,
            class_names=self.classes if self.columns.label else (),
            columns=decoded.features if self._shape is None and not self.columns.text and not lists else (),
        )
        if not lists or self._shape is not None or not all(map(str.isidentifier, decoded.features)):
            return samples  # columns of other names are no inputs of a model's
        named = zip(decoded.features, decoded.widths, strict=True)
        return replace(
            samples, inputs=tuple(NamedInput(name, (width,) if width > 1 else ()) for name, width in named)
        )


def _shown(head: Sequence[str]) -> str:
    """The names of a table's columns, the first and the last of many: a label is often the last."""
    names = [name[:_LONGEST_NAME] for name in head]
    shown = names if len(names) <= 2 * _AT_EACH_END else [*names[:_AT_EACH_END], "...", *names[-_AT_EACH_END:]]
    return ", ".join(shown)
