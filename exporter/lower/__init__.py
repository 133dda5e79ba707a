"""Lowerings, one file a runtime, found by name: each has ``lower(request, report)``."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from edge_fl.bundle import Program
from edge_fl.errors import RuntimeMissingError
from edge_fl.layout import Layout
from edge_fl.pattern import kept_counts
from exporter import lower
from exporter.quiet import quiet
from exporter.source import Traceable

__all__ = ["Lowered", "Report", "Request", "kept_at", "lower_for", "runtime_names"]

Report = Callable[[str], None]
"""Told in a few words what is being done."""

Lowered = list[tuple[Program, bytes]]


@dataclass(frozen=True)
class Request:
    """What a runtime's programs are made from; ``widths`` (thousandths) and ``batch`` matter to static ones."""

    steps: tuple[Traceable, ...]
    evaluation: Traceable
    widths: tuple[int, ...]
    batch: int


def kept_at(layout: Layout, width: int) -> dict[str, int]:
    """Kept units of each block at a width (thousandths): what dropout 1 - width leaves."""
    return kept_counts(layout, 1000 - width)


def runtime_names() -> list[str]:
    """The runtimes this version can export for."""
    names = (module.name for module in pkgutil.iter_modules(lower.__path__))
    return sorted(name for name in names if not name.startswith("_"))


def lower_for(runtimes: tuple[str, ...], request: Request, report: Report) -> dict[str, Lowered]:
    """The programs of each runtime.

    Raises
    ------
    RuntimeMissingError
        When a runtime is unknown, or its compiler is not installed.
    UnsupportedModelError
        When a runtime has no kernel for an operation of the model.
    """
    for name in runtimes:
        if name not in runtime_names():
            raise RuntimeMissingError(f"There is no runtime '{name}'; there are {', '.join(runtime_names())}.")
    return {name: _lower(name, request, report) for name in runtimes}


def _lower(runtime: str, request: Request, report: Report) -> Lowered:
    with quiet():
        try:
            module = importlib.import_module(f"exporter.lower.{runtime}")
        except ImportError as error:
            raise RuntimeMissingError(
                f"Exporting for '{runtime}' needs what is not installed: {error}."
            ) from error
        lowered: Lowered = module.lower(request, lambda text: report(f"{runtime}: {text}"))
    return lowered
