"""Native code that writes to the terminal past Python."""

import contextlib
import os
import sys
from collections.abc import Iterator

__all__ = ["native_stderr_closed"]


@contextlib.contextmanager
def native_stderr_closed() -> Iterator[None]:
    """ExecuTorch's thread pool writes what it reads of the processor to file descriptor 2, past ``sys.stderr``."""
    sys.stderr.flush()
    kept, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    os.close(sink)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
