"""The user's Python: ``python:path/to/file.py:function``, or ``python:package.module:function``."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from edge_fl.core.errors import DataError
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
        module, colon, name = argument.rpartition(":")
        if not colon or not name.isidentifier() or not module:
            raise DataError(f"'{argument}' names no function: write it as python:path/to/file.py:function.")
        self._name = f"'{argument}'"
        found = getattr(_imported(module), name, None)
        if not callable(found):
            raise DataError(f"'{module}' has no function '{name}'.")
        self._function: Callable[[], Any] = found

    def samples(self) -> Samples:
        """What the function gives now."""
        try:
            given = self._function()
        except (Exception, SystemExit) as error:  # the user's code may raise anything, and the agent goes on
            raise DataError(f"{self._name} raised {_told(error)}.") from error
        from edge_fl.data.given import samples_of  # which opens sources itself

        if isinstance(given, str | DataSource):
            raise DataError(f"{self._name} returned an object of type '{type(given).__name__}', not samples.")
        return samples_of(given, self._name)


def _imported(name: str) -> ModuleType:
    try:
        return _of_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except DataError:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(f"'{name}' cannot be imported: it raised {_told(error)}.") from error


def _of_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise DataError(f"There is no Python file '{path}'.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}".rstrip(": ")


SOURCE = PythonSource
