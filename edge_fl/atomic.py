"""Writing files so that a reader, or a restart, sees the old one or the new one, never half of either."""

import os
from pathlib import Path

from edge_fl.errors import StateError

__all__ = ["write_atomically"]


def write_atomically(path: Path, data: bytes, *, flush: bool = True) -> None:
    """Write ``data`` to ``path``, whose folder is made if need be.

    On disk when this returns; without ``flush`` in the hands of the operating system, which the end of this process
    leaves untouched, but a power cut does not.

    Raises StateError when it cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(data)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
        if flush:
            _flush_folder(path.parent)
    except OSError as error:
        raise StateError(f"'{path}' cannot be written: {error.strerror}.") from error


def _flush_folder(folder: Path) -> None:
    """A new name is on disk when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
