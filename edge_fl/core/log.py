"""What a log line knows besides its message, and how it is one JSON object."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

__all__ = ["JsonFormatter", "log_fields"]

_fields: ContextVar[Mapping[str, object]] = ContextVar("edge-fl-log-fields")


@contextmanager
def log_fields(**fields: object) -> Iterator[None]:
    """Have every line that is logged while the context lasts know these, such as ``round``."""
    token = _fields.set({**_fields.get({}), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


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
