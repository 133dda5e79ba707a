"""Imports of our own packages that tell a user's file of the same name apart from a package that is not there."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from edge_fl.core.errors import ConfigError, EdgeFLError

__all__ = ["ours"]

_OURS = ("broker", "exporter", "device_sim", "benchmarks")


def ours(module: str) -> ModuleType:
    """Import one of our modules.

    Raises
    ------
    EdgeFLError
        When a file of the user's has the name of one of our packages and is found first, or when the package is not
        installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package or package not in _OURS:
            raise
        raise _elsewhere(package) from error


def _elsewhere(package: str) -> EdgeFLError:
    found = importlib.util.find_spec(package)
    if found is None:
        return ConfigError(
            f"'{package}' is not part of the installed package: run this command in a checkout of edge-fl."
        )
    shadow = found.origin or next(iter(found.submodule_search_locations or ()), "?")
    return ConfigError(f"'{Path(shadow)}' hides edge-fl's package '{package}': rename that file or folder.")
