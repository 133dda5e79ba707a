"""Class names in a file: which name is which class."""

from pathlib import Path

from edge_fl.core.errors import DataError

__all__ = ["read_class_names"]


def read_class_names(path: Path | None) -> tuple[str, ...]:
    """One name a line, blank lines at the end left out; none without a file. Raises DataError."""
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise DataError(f"The class names cannot be read from '{path}': {reason}.") from error
    names = tuple(line.strip() for line in lines)
    if not all(names):
        raise DataError(f"'{path}' has a line without a name: write one class name a line.")
    return names
