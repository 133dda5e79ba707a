"""What a log line knows besides its message, and how it is one JSON object."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from edge_fl.core.errors import printable

__all__ = ["JsonFormatter", "TextFormatter", "log_fields"]

_LONGEST = 4000  # characters of a line
_fields: ContextVar[Mapping[str, object]] = ContextVar("edge-fl-log-fields")


@contextmanager
def log_fields(**fields: object) -> Iterator[None]:
    """Have every line that is logged while the context lasts know these, such as ``round``."""
    token = _fields.set({**_fields.get({}), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


class TextFormatter(logging.Formatter):
    """A line for people: what a stranger said in it ends no line, and moves no cursor."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """The line, before the traceback that may follow."""
        return printable(super().formatMessage(record), _LONGEST)


class JsonFormatter(logging.Formatter):
    """An object a line: ``time`` (UTC), ``level``, ``logger``, ``message``, and all else that is known.

    Parameters
    ----------
    fields
        What every line knows, such as ``client``.
    """

    def __init__(self, **fields: object) -> None:
        super().__init__()
        self._always = fields

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a line break in it."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._always,
            **_fields.get({}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
