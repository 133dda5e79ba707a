"""The models of the papers, one file a family, each cited; a new model is one new file with ``ENTRIES``."""

import importlib
import pkgutil

from torch import nn

from edge_fl.core.errors import ModelError
from exporter.zoo.entry import Entry

__all__ = ["build", "find_model", "model_names"]


def model_names() -> list[str]:
    """The models of the zoo, as the command line names them."""
    return sorted(_entries())


def find_model(name: str) -> Entry:
    """Look the model ``name`` up; raises ModelError when there is none."""
    entries = _entries()
    if name not in entries:
        raise ModelError(f"There is no model '{name}' in the zoo; there are {', '.join(sorted(entries))}.")
    return entries[name]


def build(name: str) -> nn.Module:
    """Build the model ``name`` at its full size, initialised by torch's global generator.

    Raises ModelError when the zoo has no such model.
    """
    return find_model(name).build()


def _entries() -> dict[str, Entry]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {entry.name: entry for module in modules for entry in getattr(module, "ENTRIES", ())}
