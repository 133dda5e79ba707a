"""Where a bundle may be written: over nothing that is no bundle."""

from pathlib import Path

from edge_fl.core.bundle import MANIFEST, WEIGHTS
from edge_fl.core.errors import ConfigError
from edge_fl.core.frozen import FROZEN

__all__ = ["check_output"]

_A_RUNS = "metrics.jsonl"


def check_output(root: Path) -> None:
    """Raise ConfigError where a bundle at ``root`` would overwrite a run or other weights, or lie in another bundle."""
    if root.exists() and not root.is_dir():
        raise ConfigError(f"'{root}' is a file: give a folder with --output.")
    held = next((name for name in (_A_RUNS, WEIGHTS, FROZEN) if (root / name).exists()), None)
    if held is not None and not (root / MANIFEST).exists():
        what = "a run" if held == _A_RUNS else f"'{held}'"
        raise ConfigError(f"'{root}' holds {what} and no bundle: give another folder with --output.")
    if (root.absolute().parent / MANIFEST).exists() and not (root / MANIFEST).exists():
        raise ConfigError(f"'{root}' lies in a bundle: give another folder with --output.")
