"""The user's Python: ``python:path/to/file.py:function``, or ``python:package.module:function``."""

from collections.abc import Callable
from typing import Any

from edge_fl.core.errors import ConfigError, DataError, said
from edge_fl.core.registry import load_object
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import DataSource

__all__ = ["SOURCE", "PythonSource"]


class PythonSource(DataSource):
    """A function without arguments that gives ``(x, y)``, or a data set; called whenever a task begins.

    Parameters
    ----------
    argument
        ``FILE.py:FUNCTION``, whose folder is importable from then on, or ``MODULE:FUNCTION`` of what is installed.

    Raises
    ------
    DataError
        When there is no such function, or its file raises.
    """

    def __init__(self, argument: str) -> None:
        self._name = f"'{argument}'"
        try:
            found = load_object(argument)
        except ConfigError as error:
            raise DataError(str(error)) from error
        if not callable(found):
            raise DataError(f"{self._name} is no function.")
        self._function: Callable[[], Any] = found

    def samples(self) -> Samples:
        """What the function gives now."""
        try:
            given = self._function()
        except (Exception, SystemExit) as error:  # the user's code may raise anything, and the agent goes on
            raise DataError(f"{self._name} raised {type(error).__name__}: {said(error)}.") from error
        from edge_fl.data.given import samples_of  # which opens sources itself

        if isinstance(given, str | DataSource):
            raise DataError(f"{self._name} returned an object of type '{type(given).__name__}', not samples.")
        return samples_of(given, self._name)


SOURCE = PythonSource
