"""Writing files so that a reader, or a restart, sees the old one or the new one, never half of either."""

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from edge_fl.core.errors import StateError

__all__ = ["partial_of", "settle", "write_atomically"]


def write_atomically(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Write ``data`` to ``path``, whose folder is made if need be; on disk when this returns.

    What is ``secret`` its owner alone can read, from the first byte on.

    Raises StateError when it cannot be written.
    """
    partial = partial_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb", opener=_for_the_owner if secret else None) as file:
            file.write(data)
            settle(file, partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)  # half a file would keep a full disk full
        raise StateError(f"'{path}' cannot be written: {error.strerror}.") from error


def partial_of(path: Path) -> Path:
    """What a file is called until all of it is there."""
    return path.with_name(f"{path.name}.partial")


def settle(file: IO[bytes], partial: Path, path: Path) -> None:
    """Give the open ``file`` at ``partial`` its name; on disk when this returns. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())
    partial.replace(path)
    _flush_folder(path.parent)


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _flush_folder(folder: Path) -> None:
    """A new name is on disk when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
