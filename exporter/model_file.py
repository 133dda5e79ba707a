"""The user's model: ``path/to/file.py:function`` to an nn.Module."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from torch import nn

from edge_fl.errors import ModelError

__all__ = ["load_model"]


def load_model(reference: str) -> nn.Module:
    """Call the function that ``reference`` names, without arguments, and return the model it builds.

    Parameters
    ----------
    reference
        ``path/to/file.py:function``. The file's folder is importable while it runs, as for a script.

    Raises
    ------
    ModelError
        When the file or the function does not exist, or either raises, or gives no ``nn.Module``.
    """
    path, colon, function = reference.rpartition(":")
    if not colon or not function.isidentifier():
        raise ModelError(f"'{reference}' names no model: write it as path/to/file.py:function.")
    module = _run(Path(path))
    build = getattr(module, function, None)
    if not callable(build):
        raise ModelError(f"'{path}' has no function '{function}'.")
    try:
        model = build()
    except Exception as error:  # whatever the user's code raises is the user's to read
        raise ModelError(f"'{reference}' raised {type(error).__name__}: {error}.") from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"'{reference}' returned an object of type '{type(model).__name__}', not a torch.nn.Module."
        )
    return model


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
    except Exception as error:  # as above: the file is the user's
        raise ModelError(f"'{path}' raised {type(error).__name__}: {error}.") from error
    finally:
        sys.path.pop(0)
    return module
