"""Bundles that benchmarks run: exported once, and kept for as long as the exporter is the same."""

import hashlib
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import exporter
from edge_fl.bench.cases import Case
from edge_fl.bundle import SEAL, Bundle
from edge_fl.errors import RuntimeMissingError
from edge_fl.runtimes.base import runtime_names
from exporter.export import export_bundle
from exporter.lower import runtime_names as exportable
from exporter.quiet import quiet

__all__ = ["chosen_runtimes", "exported", "exporter_digest"]


def chosen_runtimes(names: Sequence[str]) -> tuple[str, ...]:
    """``names``, or where there are none, all that can be both exported for and run here.

    Raises RuntimeMissingError when one of the names cannot.
    """
    installed = [name for name in runtime_names() if name in exportable() and _importable(name)]
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


def exported(case: Case, runtime: str, folder: Path, report: Callable[[str], None]) -> Bundle:
    """The bundle of a model for one runtime, from ``folder`` where this very exporter has put it there.

    Raises as :func:`exporter.export.export_bundle` does, and BundleError when a kept bundle is damaged.
    """
    root = folder / exporter_digest() / case.name / runtime
    if (root / SEAL).exists():
        return Bundle.load(root)
    return export_bundle(
        case.build(), case.target(runtime), root, report=lambda text: report(f"{case.name}: {text}")
    )


def _importable(name: str) -> bool:
    try:
        with quiet():
            importlib.import_module(f"edge_fl.runtimes.{name}")
            importlib.import_module(f"exporter.lower.{name}")
    except ImportError:
        return False
    return True
