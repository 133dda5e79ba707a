"""What a model is delivered as, one file a runtime, found by name.

Each module is a :class:`Format`.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, Protocol

from torch.export import ExportedProgram

from edge_fl.core.errors import RuntimeMissingError
from exporter.extract import formats
from exporter.quiet import quiet

__all__ = ["Format", "find_format", "format_names"]


class Format(Protocol):
    """What this folder's modules are.

    ``SUFFIX`` is that of the file, ``BATCH`` the samples that it takes at a time (None for any number), ``RUNTIME`` the
    one of :mod:`edge_fl.runtimes` that runs it.
    """

    SUFFIX: str
    BATCH: int | None
    RUNTIME: str

    def save(self, exported: ExportedProgram, properties: Mapping[str, str]) -> bytes:
        """The file of a program from ``x`` to ``outputs``; ``properties`` travel in it where it has a place for them.

        Raises UnsupportedModelError when the runtime has no kernel for an operation.
        """


def format_names() -> list[str]:
    """The runtimes this version can extract a model for."""
    return sorted(module.name for module in pkgutil.iter_modules(formats.__path__))


def find_format(runtime: str) -> Format:
    """The format of ``runtime``; raises RuntimeMissingError when it is unknown or not installed."""
    if runtime not in format_names():
        raise RuntimeMissingError(
            f"There is no runtime '{runtime}' to extract for; there are {', '.join(format_names())}."
        )
    try:
        with quiet():
            module: Any = importlib.import_module(f"exporter.extract.formats.{runtime}")
    except ImportError as error:
        raise RuntimeMissingError(f"Extracting for '{runtime}' needs what is not installed: {error}.") from error
    found: Format = module
    return found
