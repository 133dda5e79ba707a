"""One process at a time changes a fleet's folder: the enrol listener and the operator's commands share it."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.provision.authority import Authority
from edge_fl.core.errors import StateError

__all__ = ["locked_authority"]


@contextmanager
def locked_authority(folder: Path) -> Iterator[Authority]:
    """The authority in ``folder`` as it is now, which nobody else changes meanwhile.

    Raises StateError where there is none, it is damaged, or its folder cannot be written.
    """
    if not folder.is_dir():
        Authority.open(folder)  # says what is missing
    try:
        lock = (folder / ".lock").open("ab")
    except OSError as error:
        raise StateError(f"'{folder}' cannot be written: {error.strerror}.") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Authority.open(folder)
