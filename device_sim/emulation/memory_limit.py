"""A memory limit that a process really hits, and how it shows."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_fl.core.errors import MemoryLimitError

__all__ = ["limit_memory", "told_as_memory"]

_MB = 1 << 20
_WORDS = (
    "bad_alloc",
    "bad allocation",
    "failed to allocate",
    "unable to allocate",
    "cannot allocate",
    "out of memory",
    "can't start new thread",
)


def limit_memory(memory_mb: int) -> None:
    """Let this process take ``memory_mb`` MB besides what it holds now: more is refused by the kernel.

    That is RLIMIT_DATA: heap and private mappings, threads' stacks too, but no mapped files. Call it when interpreter
    and libraries are loaded.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _held() + memory_mb * _MB
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


@contextmanager
def told_as_memory(memory_mb: int, doing: str) -> Iterator[None]:
    """Raise MemoryLimitError instead of whatever a failed allocation raises, from Python or from a runtime's C++."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryLimitError) or not _is_memory(error):
            raise
        raise MemoryLimitError(f"The device's {memory_mb} MB of memory do not suffice for {doing}.") from error


def _is_memory(error: BaseException | None) -> bool:
    """Whether an allocation failed, here or where the error came from."""
    while error is not None:
        # CPython that runs out of memory may lose the very error: "error return without exception set".
        if isinstance(error, MemoryError | SystemError) or any(word in str(error).lower() for word in _WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def _held() -> int:
    """Bytes of this process that RLIMIT_DATA counts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return 1024 * int(line.split()[1])
    raise MemoryLimitError("This system does not tell how much memory a process holds; memory cannot be limited.")
