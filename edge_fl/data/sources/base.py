"""What a data source is, and how one is opened by what ``--data`` says.

A new source is one new file here, named as ``--data NAME:...`` shall name it, with a ``SOURCE``: a
:class:`DataSource` that is made of the text behind the colon.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from edge_fl.core.errors import ConfigError, DataError, said
from edge_fl.core.registry import Registry, load_object
from edge_fl.core.spelling import meant
from edge_fl.data.partition import DataSpec, client_samples
from edge_fl.data.registry import Samples

__all__ = [
    "SOURCES",
    "DataSource",
    "FileSource",
    "NamedShare",
    "open_source",
    "parse_shape",
    "read_content",
    "source_names",
    "split_argument",
]

_OWN = re.compile(r"(?P<spec>[^:]+\.py:[A-Za-z_]\w*)(:(?P<argument>.*))?")
_Stamp = tuple[str, int, int, int]
_Options = TypeVar("_Options", bound=msgspec.Struct)


class DataSource(ABC):
    """A device's own data."""

    @abstractmethod
    def samples(self) -> Samples:
        """The data as it is now. The agent asks at its start and at the start of every task.

        Returns
        -------
        At least one sample, always in the same order. Where nothing has changed it may be the very object of the call
        before, which the agent then need not check again.

        Raises
        ------
        DataError
            In one sentence that names the file, and the line or the sample, that is wrong.
        """


class NamedShare(DataSource):
    """A share of a data set that edge-fl knows, which never changes."""

    def __init__(self, spec: DataSpec) -> None:
        self._spec = spec
        self._samples: Samples | None = None

    def samples(self) -> Samples:
        """The client's part of the train split."""
        if self._samples is None:
            self._samples = client_samples(self._spec)
        return self._samples


class FileSource(DataSource):
    """Data in files, read again once one of them is another than it was.

    Parameters
    ----------
    path
        The file, or the folder of them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: tuple[list[_Stamp], Samples] | None = None

    @abstractmethod
    def files(self) -> list[Path]:
        """Every file that the samples are made of, in a fixed order; raises DataError when there is none."""

    @abstractmethod
    def read(self) -> Samples:
        """The samples in :meth:`files`; raises DataError when one cannot be read."""

    def samples(self) -> Samples:
        """What the files hold."""
        stamps = [_stamp(file) for file in self.files()]  # before reading: a later change is seen the next time
        if self._held is None or self._held[0] != stamps:
            self._held = (stamps, self.read())
        return self._held[1]


def split_argument(argument: str, options: type[_Options]) -> tuple[Path, _Options]:
    """Read ``PATH`` or ``PATH?OPTION=VALUE&OPTION=VALUE``, the fields of ``options``.

    Raises
    ------
    DataError
        When there is no path, no such option, or no such value of one.
    """
    path, _, settings = argument.partition("?")
    if not path:
        raise DataError("The data has no path; write --data NAME:PATH, as in 'csv:readings.csv'.")
    given = dict(setting.partition("=")[::2] for setting in settings.split("&") if setting)
    fields = options.__struct_fields__
    takes = f"The data '{argument}' takes {', '.join(fields)} behind a '?', as in '?{fields[0]}=...'"
    unknown = next((name for name in given if name not in fields), None)
    if unknown is not None:
        raise DataError(f"{takes}, and no '{unknown}'.{meant(unknown, fields)}")
    try:
        return Path(path), msgspec.convert(given, options, strict=False)
    except msgspec.ValidationError as error:
        raise DataError(f"{takes}: {error}.") from error


def _stamp(file: Path) -> _Stamp:
    try:
        found = file.stat()
    except OSError as error:
        raise DataError(f"The data file '{file}' cannot be read: {error.strerror}.") from error
    return str(file), found.st_mtime_ns, found.st_size, found.st_ino


def read_content(file: Path) -> bytes:
    """The bytes of a file of the user's; raises DataError."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"The data file '{file}' cannot be read: {error.strerror}.") from error


def parse_shape(text: str) -> tuple[int, ...]:
    """Read ``1x28x28``; raises DataError on anything else."""
    sizes = text.split("x")
    if not all(size.isascii() and size.isdigit() and 0 < int(size) < 2**31 for size in sizes):
        raise DataError(f"'{text}' is no shape of a sample; write it as 1x28x28.")
    return tuple(int(size) for size in sizes)


SOURCES: Registry[DataSource] = Registry(
    "source", "edge_fl.data.sources", "SOURCE", DataSource, group="edge_fl.sources"
)


def source_names() -> Sequence[str]:
    """The sources that are known here besides the data sets."""
    return SOURCES.names()


def open_source(text: str) -> DataSource:
    """Open what ``--data`` says: ``NAME:...`` of a source, a data set or a share of one, or a source of one's own.

    That is ``file.py:CLASS`` or ``file.py:CLASS:ARGUMENT``, a subclass of :class:`DataSource` that is made of the
    argument.

    Raises
    ------
    DataError
        When there is no such source or data set, or it cannot be opened so.
    """
    if match := _OWN.fullmatch(text):
        try:
            found = load_object(match["spec"])
        except ConfigError as error:
            raise DataError(str(error)) from error
        if not SOURCES.is_one(found):
            raise DataError(f"'{match['spec']}' is no source: it must be a subclass of DataSource.")
        return _made(found, match["argument"] or "", text)
    name, colon, argument = text.partition(":")
    if not colon or name not in source_names():
        return NamedShare(DataSpec.parse(text))
    try:
        return _made(SOURCES.find(name), argument, text)
    except ConfigError as error:
        raise DataError(str(error)) from error


def _made(source: Callable[[str], DataSource], argument: str, text: str) -> DataSource:
    try:
        return source(argument)
    except DataError:
        raise
    except Exception as error:  # a source of the user's may raise anything
        raise DataError(f"The source '{text}' cannot be opened: {said(error)}.") from error
