"""The user's files: ``path/to/file.py:function`` to what the function is, or to the nn.Module it builds."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from edge_fl.core.errors import ModelError
from exporter.wrapped import unwrapped

__all__ = ["load_function", "load_model"]


def load_function(reference: str) -> Callable[..., Any]:
    """The function that ``reference`` names.

    Parameters
    ----------
    reference
        ``path/to/file.py:function``. The file's folder is importable while it runs, as for a script.

    Raises
    ------
    ModelError
        When the file or the function does not exist, or the file raises.
    """
    path, colon, function = reference.rpartition(":")
    if not colon or not function.isidentifier():
        raise ModelError(f"'{reference}' names no function: write it as path/to/file.py:function.")
    found = getattr(_run(Path(path)), function, None)
    if not callable(found):
        raise ModelError(f"'{path}' has no function '{function}'.")
    result: Callable[..., Any] = found
    return result


def load_model(reference: str) -> nn.Module:
    """Call the function that ``reference`` names, without arguments, and return the model it builds.

    Raises
    ------
    ModelError
        As :func:`load_function` and :func:`unwrapped`, or when the function raises or gives no ``nn.Module``.
    """
    build = load_function(reference)
    try:
        model = build()
    except (Exception, SystemExit) as error:  # whatever the user's code raises is the user's to read
        raise ModelError(f"'{reference}' raised {type(error).__name__}: {error}.") from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"'{reference}' returned an object of type '{type(model).__name__}', not a torch.nn.Module."
        )
    return unwrapped(model)


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelError(f"There is no model file '{path}'.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"'{path}' is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # as above: the file is the user's
        raise ModelError(f"'{path}' raised {type(error).__name__}: {error}.") from error
    finally:
        sys.path.pop(0)
    return module
