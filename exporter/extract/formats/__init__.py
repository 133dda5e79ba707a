"""What a model is delivered as, one file a runtime, found by name: each has a ``FORMAT``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch.export import ExportedProgram

from edge_fl.core.errors import RuntimeMissingError
from edge_fl.core.registry import Named

__all__ = ["FORMATS", "Format"]


@dataclass(frozen=True)
class Format:
    """How a runtime's model files are written.

    ``suffix`` is that of the file, ``batch`` the samples that it takes at a time (None for any number), ``runtime`` the
    one of :mod:`edge_fl.runtimes` that runs it. ``save`` gives the file of a program from inputs of these names to
    ``outputs``; the properties travel in the file where it has a place for them. It raises UnsupportedModelError when
    the runtime has no kernel for an operation.
    """

    suffix: str
    batch: int | None
    runtime: str
    save: Callable[[ExportedProgram, Sequence[str], Mapping[str, str]], bytes]


FORMATS: Named[Format] = Named("runtime", "exporter.extract.formats", "FORMAT", error=RuntimeMissingError)
"""The runtimes this version can extract a model for."""
