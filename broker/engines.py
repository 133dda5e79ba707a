"""Connections to the database of a run's record, and the right to write the run, which one process has at a time.

The right ends with the process, however that ends: with SQLite it is a lock on a file beside it, with PostgreSQL one of
the very connection that writes, so that who loses the connection loses both.
"""

import fcntl
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Connection, Engine, StaticPool, create_engine, event, text
from sqlalchemy.engine import URL

from edge_fl.core.errors import StateError

__all__ = ["engine_of", "hold", "is_held", "is_held_in_server"]

_LOOKED_AT_SECONDS = 0.1
_POSTGRES = {
    "connect_timeout": 10,
    # Either side notices within half a minute that the other's machine is gone.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "options": "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3",
}


def engine_of(url: URL, run: str | None) -> Engine:
    """What connects to the database at ``url``; in PostgreSQL to write ``run``, or to look only (None).

    Its first connection raises StateError where another process writes the run.
    """
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url)
        event.listen(engine, "connect", _set_up_sqlite)
        return engine
    engine = create_engine(url, poolclass=StaticPool, connect_args=_POSTGRES)
    if run is not None:
        event.listen(engine, "connect", _lock(run, url.render_as_string()))
    return engine


def hold(database: Path) -> IO[str]:
    """Take the right to write an SQLite file: it lasts until what is returned is closed.

    Raises StateError when another process has it.
    """
    database.parent.mkdir(parents=True, exist_ok=True)
    file = _lock_file(database).open("w")
    for last in (False, True):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if last:
                file.close()
                raise StateError(f"Another process is at work on the run in '{database.parent}'.") from error
        time.sleep(_LOOKED_AT_SECONDS)  # who only looks (:func:`is_held`) has it for an instant
    return file


def is_held(database: Path) -> bool:
    """Whether a process has the right to write an SQLite file; raises OSError where that cannot be told."""
    try:
        with _lock_file(database).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:  # nobody ever wrote it
        return False
    return False


def is_held_in_server(connection: Connection, run: str) -> bool:
    """Whether a process has the right to write ``run`` in PostgreSQL."""
    key = _key(run) % 2**64
    asked = text(
        "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
        "AND classid = :high AND objid = :low "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
    )
    return bool(connection.scalar(asked, {"high": key >> 32, "low": key & 0xFFFFFFFF}))


def _lock_file(database: Path) -> Path:
    return database.with_name(f"{database.name}.lock")


def _key(run: str) -> int:
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:8], "big", signed=True)


def _lock(run: str, name: str) -> Callable[[Any, object], None]:
    key = _key(run)

    def take(connection: Any, _record: object) -> None:
        (taken,) = connection.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone()
        connection.commit()
        if not taken:
            connection.close()
            raise StateError(f"Another process is at work on run '{run}' in {name}.")

    return take


def _set_up_sqlite(connection: Any, _record: object) -> None:
    """Readers beside the writer; a power cut may lose the last transactions, and never leaves half of one."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
