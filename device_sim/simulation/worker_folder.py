"""A folder for temporary files of a process that may be killed at any time."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["WorkerFolder"]

_PREFIX, _LOCK = "edge-fl-worker-", "lock"


class WorkerFolder:
    """It ends with :meth:`close`, or when the next one is made on this machine after its process was killed.

    A lock says whether the process lives: the system takes it away with the process.

    Attributes
    ----------
    path
        The folder, which nobody else may look into.
    """

    def __init__(self) -> None:
        _remove_left_behind()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        early = self.path / f".{_LOCK}"
        self._lock = os.open(early, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        early.rename(self.path / _LOCK)  # nobody sees it while nobody holds it

    def close(self) -> None:
        """Remove it, and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_left_behind() -> None:
    """Remove what processes of this user left that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, one that is just made, or one that another process removes
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
