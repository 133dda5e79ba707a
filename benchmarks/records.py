"""What a long benchmark has found so far, in a JSON file, so that it can be broken off and resumed.

A file whose name ends in ``.gz`` is compressed; the same records give the same bytes.
"""

import fcntl
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from edge_fl.core.atomic import write_atomically
from edge_fl.core.errors import DataError, StateError

__all__ = ["held", "read_records", "write_records"]

T = TypeVar("T", bound=msgspec.Struct)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep other benchmarks from writing to ``path`` while records are added; StateError when it cannot be had."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock").open("w")
    except OSError as error:
        raise StateError(f"'{path}' cannot be written: {error.strerror}.") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_records(path: Path, kind: type[T]) -> list[T]:
    """The records in ``path``, none where there is no such file; raises DataError when it holds anything else."""
    if not path.exists():
        return []
    try:
        content = path.read_bytes()
        plain = gzip.decompress(content) if path.suffix == ".gz" else content
        return msgspec.json.decode(plain, type=list[kind])  # type: ignore[valid-type]
    except (msgspec.DecodeError, OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"'{path}' does not hold this benchmark's results ({error}): name another file."
        ) from error


def write_records(path: Path, records: list[T]) -> None:
    """Put ``records`` into ``path``, a line each, whole or not at all; raises StateError when it cannot be written."""
    content = b"[\n" + b",\n".join(msgspec.json.encode(record) for record in records) + b"\n]\n"
    write_atomically(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
