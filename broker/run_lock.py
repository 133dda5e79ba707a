"""One process at a time writes a run: held as long as the process lives, however it ends."""

import fcntl
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL

from edge_fl.errors import StateError

__all__ = ["hold"]


def hold(url: URL, run: str | None) -> Callable[[], None]:
    """Take the right to write ``run`` in the database at ``url``.

    Returns
    -------
    Gives it back.

    Raises
    ------
    StateError
        When another process has it.
    """
    return _hold_file(Path(f"{url.database}.lock")) if url.get_backend_name() == "sqlite" else _hold_row(url, run)


def _hold_file(path: Path) -> Callable[[], None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise StateError(f"Another process is at work on the run in '{path.parent}'.") from error
    return file.close


def _hold_row(url: URL, run: str | None) -> Callable[[], None]:
    engine = create_engine(url)
    connection = engine.connect()
    taken = connection.scalar(text("SELECT pg_try_advisory_lock(hashtext(:run))"), {"run": run})
    connection.commit()
    if not taken:
        connection.close()
        engine.dispose()
        raise StateError(f"Another process is at work on run '{run}' in {url.render_as_string()}.")

    def release() -> None:
        connection.close()
        engine.dispose()

    return release
