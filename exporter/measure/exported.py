"""Bundles that benchmarks run: exported once, and kept for as long as the exporter is the same."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

import exporter
from edge_fl.core.bundle import PLAIN_SGD, SEAL, Bundle, Optimizer
from edge_fl.core.errors import RuntimeMissingError
from edge_fl.runtimes.base import RUNTIMES
from exporter.export import export_bundle
from exporter.lower import LOWERINGS
from exporter.measure.cases import Case
from exporter.quiet import quiet

__all__ = ["chosen_runtimes", "exported", "exporter_digest"]


def chosen_runtimes(names: Sequence[str]) -> tuple[str, ...]:
    """``names``, or where there are none, all that can be both exported for and run here.

    Raises RuntimeMissingError when one of the names cannot.
    """
    installed = [name for name in RUNTIMES.names() if name in LOWERINGS.names() and _importable(name)]
    missing = [name for name in names if name not in installed]
    if missing:
        raise RuntimeMissingError(
            f"The runtime '{missing[0]}' is unknown or not installed here; there are {', '.join(installed)}."
        )
    return tuple(dict.fromkeys(names)) or tuple(installed)


@cache
def exporter_digest() -> str:
    """12 hex digits that change with any line of the exporter, and so with whatever its programs could."""
    root = Path(exporter.__file__).parent
    sources = sorted(root.rglob("*.py"))
    content = b"".join(str(path.relative_to(root)).encode() + path.read_bytes() for path in sources)
    return hashlib.sha256(content).hexdigest()[:12]


def exported(
    case: Case,
    runtimes: Sequence[str],
    folder: Path,
    report: Callable[[str], None],
    *,
    optimizer: Optimizer = PLAIN_SGD,
    variants: tuple[str, ...] = ("plain",),
    statistics: tuple[int, ...] = (),
    masks_labels: bool = False,
) -> Bundle:
    """The bundle of a model for some runtimes, from ``folder`` where this very exporter has put it there.

    Parameters
    ----------
    optimizer, variants
        What its steps train with, and the kinds of step it holds.
    statistics
        The widths, in thousandths, that BatchNorm is to keep statistics of, where the model has it; one set for none.
    masks_labels
        Whether the loss is to leave out the classes that a client has no samples of, where one sample has one class.

    Raises
    ------
    EdgeFLError
        As :func:`exporter.export.export_bundle` does, and BundleError when a kept bundle is damaged.
    """
    rows = statistics if case.normalised else ()
    masked = masks_labels and not case.model.per_position
    parts = [*runtimes, *variants, _short(optimizer), *map(str, rows), *(["masked"] if masked else [])]
    root = folder / exporter_digest() / case.name / "+".join(parts)
    if (root / SEAL).exists():
        return Bundle.load(root)
    target = replace(case.target(runtimes[0], optimizer), runtimes=tuple(runtimes), variants=variants)
    if masked:
        target = replace(target, loss="masked_cross_entropy")
    if rows:
        target = replace(target, widths=rows, batch_norm="per-width")
    return export_bundle(case.build(), target, root, report=lambda text: report(f"{case.name}: {text}"))


def _short(optimizer: Optimizer) -> str:
    return hashlib.sha256(msgspec.json.encode(optimizer)).hexdigest()[:8]


def _importable(name: str) -> bool:
    try:
        with quiet():
            RUNTIMES.find(name)
            LOWERINGS.find(name)
    except RuntimeMissingError:
        return False
    return True
