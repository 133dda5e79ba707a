"""Lowerings, one file a runtime, found by name: each has ``lower(request, report)``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from edge_fl.core.bundle import Program
from edge_fl.core.errors import RuntimeMissingError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import kept_counts, prefix_counts
from edge_fl.core.registry import Named
from exporter.quiet import quiet
from exporter.source import Step, Traceable

__all__ = [
    "LOWERINGS",
    "DropoutWidth",
    "Lowered",
    "Report",
    "Request",
    "kept_at",
    "lower_for",
    "program_widths",
]

Report = Callable[[str], None]
"""Told in a few words what is being done."""

Lowered = list[tuple[Program, bytes]]


@dataclass(frozen=True)
class Request:
    """What a runtime's programs are made from; ``widths`` (of :func:`program_widths`) and ``batch`` matter to static
    ones. ``features`` is there where steps and evaluation take them in place of samples (:mod:`exporter.features`).
    """

    steps: tuple[Step, ...]
    evaluation: Traceable
    widths: tuple[int, ...]
    batch: int
    features: Traceable | None = None

    def whole(self, report: Report) -> Iterator[tuple[Literal["eval", "features"], Traceable]]:
        """The programs of all units, by their kind; each is told of."""
        report("evaluation")
        yield "eval", self.evaluation
        if self.features is not None:
            report("features")
            yield "features", self.features


class DropoutWidth(int):
    """A width in thousandths that keeps what dropout of the rest leaves, and is named so in a program's file."""

    def __format__(self, spec: str) -> str:
        return f"{super().__format__(spec)}-dropout"


def kept_at(layout: Layout, width: int) -> dict[str, int]:
    """Kept units of each block at a width (thousandths): ``ceil(width * J_b)``, of a :class:`DropoutWidth` S_b."""
    if isinstance(width, DropoutWidth):
        return kept_counts(layout, 1000 - width)
    return prefix_counts(layout, width)


def program_widths(layout: Layout, widths: tuple[int, ...]) -> tuple[int, ...]:
    """The widths that a static runtime needs a program for, so that every method finds its own.

    Ordered dropout keeps ``ceil(w J_b)`` units where dropout of 1 - w leaves ``floor(w J_b + 0.5)``. Each of ``widths``
    stands for both, and counts that were there before need no second program. Neither do counts with a 0, which dropout
    leaves of a small block at a small width: no method trains those, where ceil keeps one unit at least.
    """
    found: list[tuple[int, dict[str, int]]] = []
    for either in ((width, DropoutWidth(width)) for width in widths):
        for rounded in either:
            counts = kept_at(layout, rounded)
            if 0 not in counts.values() and all(counts != held for _, held in found):
                found.append((rounded, counts))
    return tuple(width for width, _ in found)


LOWERINGS: Named[Callable[[Request, Report], Lowered]] = Named(
    "runtime", "exporter.lower", "lower", group="edge_fl.lowerings", error=RuntimeMissingError
)
"""The runtimes this version can export for; an installed one needs an entry point of ``edge_fl.runtimes``, too."""


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
        LOWERINGS.check(name)
    return {name: _lower(name, request, report) for name in runtimes}


def _lower(runtime: str, request: Request, report: Report) -> Lowered:
    with quiet():
        lower = LOWERINGS.find(runtime)
        return lower(request, lambda text: report(f"{runtime}: {text}"))
