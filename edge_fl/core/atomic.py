"""Writing files so that a reader, or a restart, sees the old one or the new one, never half of either."""

import os
from contextlib import suppress
from pathlib import Path

from edge_fl.core.errors import StateError

__all__ = ["flush_folder", "write_atomically"]


def write_atomically(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Write ``data`` to ``path``, whose folder is made if need be; on disk when this returns.

    What is ``secret`` its owner alone can read, from the first byte on.

    Raises StateError when it cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb", opener=_for_the_owner if secret else None) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        flush_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)  # half a file would keep a full disk full
        raise StateError(f"'{path}' cannot be written: {error.strerror}.") from error


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def flush_folder(folder: Path) -> None:
    """Have the names in ``folder`` on disk: a new file is there when its folder is. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
