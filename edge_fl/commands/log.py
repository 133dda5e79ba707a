"""Where the log of a command goes that runs for long, and in which form."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Annotated

import typer

from edge_fl.core.errors import EdgeFLError, StateError
from edge_fl.core.log import JsonFormatter, TextFormatter

__all__ = ["LogFile", "LogFormat", "LogFormatOption", "logging_to"]

_FILE_BYTES, _OLD_FILES = 5_000_000, 3
_log = logging.getLogger(__name__)


class LogFormat(StrEnum):
    """Lines for people, or an object each for programs."""

    TEXT = "text"
    JSON = "json"


LogFile = Annotated[
    Path | None,
    typer.Option(
        help="The log, in place of standard error; beside it at most 3 earlier files, FILE.1 to FILE.3, of 5 MB each."
    ),
]
LogFormatOption = Annotated[LogFormat, typer.Option(help="text, or json: one object a line.")]


@contextmanager
def logging_to(file: Path | None, format: LogFormat, **fields: object) -> Iterator[None]:
    """Send the log to ``file``, rotated so that it takes 20 MB at the most, or to standard error.

    What ends the command is written to the file, too. A disk that is full costs lines, and nothing else.

    Parameters
    ----------
    fields
        What every line knows in JSON.

    Raises
    ------
    StateError
        When the file cannot be written to begin with.
    """
    logging.raiseExceptions = False  # a line that cannot be written would become a traceback on standard error
    handler = logging.StreamHandler(sys.stderr) if file is None else _rotating(file)
    handler.setFormatter(JsonFormatter(**fields) if format is LogFormat.JSON else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    try:
        yield
    except EdgeFLError as error:
        if file is not None:
            _log.error("%s", error)
        raise
    except Exception:
        if file is not None:
            _log.exception("a fault of edge-fl, or of what it runs in")
        raise


def _rotating(file: Path) -> RotatingFileHandler:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return RotatingFileHandler(file, maxBytes=_FILE_BYTES, backupCount=_OLD_FILES, encoding="utf-8")
    except OSError as error:
        raise StateError(f"The log '{file}' cannot be written: {error.strerror}.") from error
