"""The database of a run's record: made or found, one process's to write, and every failure of it one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile

import msgspec
from sqlalchemy import Connection, insert, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, SQLAlchemyError

from broker import tables
from broker.engines import engine_of, hold, is_held, is_held_in_server
from edge_fl.core.errors import ConfigError, StateError

__all__ = ["DamagedRecordError", "Database", "local_url"]

_BACKENDS = ("sqlite", "postgresql")


def local_url(root: Path) -> URL:
    """The SQLite file of the run folder ``root``."""
    return URL.create("sqlite", database=str(root / "state.sqlite"))


class DamagedRecordError(StateError):
    """The record's own bytes are wrong."""


class Database:
    """Where one run is kept.

    Parameters
    ----------
    url
        ``sqlite:///...``, or ``postgresql+psycopg://...``, which may hold other runs too.
    run
        The run's id; None for the only one of an SQLite file.
    settings
        What a new run is begun with, as JSON; None to go on with the one that is there.
    watch
        Only look: whoever is at work on the run goes on.

    Attributes
    ----------
    run
        The run's id.
    settings
        What the run was begun with, as JSON.

    Raises
    ------
    ConfigError
        When the URL is none, or of another kind of database.
    StateError
        When there is nothing to go on with, or that run already, or the record is damaged, in use, of another schema,
        or cannot be had.
    """

    def __init__(
        self, url: str | URL, run: str | None = None, settings: bytes | None = None, *, watch: bool = False
    ) -> None:
        self._url = _checked(url)
        self._name = self._url.database if self._is_file else self._url.render_as_string()
        file = Path(str(self._name))
        if settings is None and self._is_file and not file.exists():
            raise StateError(f"There is no run in '{file.parent}': it has no {file.name}.")
        self._engine = engine_of(self._url, None if watch else run)
        self._file_lock = None
        try:
            if self._is_file and not watch:
                with self._errors():
                    self._file_lock = hold(file)
            if settings is not None:
                self.run, self.settings = self._begin(run, settings), settings
            else:
                self.run, self.settings = self._find(run)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Look at every page of an SQLite file; DamagedRecordError where one is wrong."""
        if self._is_file:
            with self.transaction() as connection:
                found = str(connection.execute(text("PRAGMA integrity_check(1)")).scalar())
            if found != "ok":
                raise DamagedRecordError(f"'{self._name}' is damaged ({' '.join(found.split())}).")

    def at_work(self) -> bool:
        """Whether some process has the right to write the run."""
        if self._is_file:
            with self._errors():
                return is_held(Path(str(self._name)))
        with self.transaction() as connection:
            return is_held_in_server(connection, self.run)

    def close(self) -> None:
        """Let another process have the run."""
        self._engine.dispose()
        if self._file_lock is not None:
            self._file_lock.close()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """What is done in it is kept whole, or not at all.

        Raises
        ------
        DamagedRecordError
            When the database is damaged.
        StateError
            When it cannot be used.
        """
        with self._errors(), self._engine.begin() as connection:
            yield connection

    @property
    def _is_file(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    def _begin(self, run: str | None, settings: bytes) -> str:
        with self.transaction() as connection:
            schema = _schema_of(connection)
        if schema == 0:
            tables.metadata.create_all(self._engine)
        else:
            self._check(schema)
        with self.transaction() as connection:
            held = connection.scalars(select(tables.runs.c.run)).all()
            if run in held or (held and self._is_file):
                raise StateError(f"'{self._name}' already holds a run; continue it with --resume.")
            connection.execute(insert(tables.runs), {"run": run, "settings": settings})
            if schema == 0:
                connection.execute(insert(tables.schema), {"schema": tables.SCHEMA})
        return str(run)

    def _find(self, run: str | None) -> tuple[str, bytes]:
        table = tables.runs
        query = select(table.c.run, table.c.settings)
        query = query if run is None else query.where(table.c.run == run)
        found = None
        with self.transaction() as connection:
            if schema := _schema_of(connection):
                self._check(schema)
                found = connection.execute(query).first()
        if found is None:
            raise StateError(
                f"'{self._name}' holds no run to go on with: it was stopped before it began; start it again."
                if run is None
                else f"'{self._name}' holds no run '{run}': name the --database that it was begun with."
            )
        return found.run, found.settings

    def _check(self, schema: int) -> None:
        if schema != tables.SCHEMA:
            raise StateError(
                f"'{self._name}' has schema version {schema}; this edge-fl reads version {tables.SCHEMA}."
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(f"'{self._name}' cannot be used: {error.strerror}.") from error
        except (SQLAlchemyError, msgspec.MsgspecError, ValueError, EOFError, BadZipFile) as error:
            if isinstance(error, SQLAlchemyError) and type(error) is not DatabaseError:
                raise StateError(f"'{self._name}' cannot be used: {_said(error)}.") from error
            # Of SQLAlchemy's, only what SQLite says of bytes that are no database of its.
            raise DamagedRecordError(f"'{self._name}' is damaged ({_said(error)}).") from error


def _checked(url: str | URL) -> URL:
    """A database that a run can be kept in; what is said of another does not repeat its password."""
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        backend = parsed.get_backend_name()
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise ConfigError(
            f"That is no database URL, such as postgresql+psycopg://user@host/runs ({_said(error)})."
        ) from error
    if backend not in _BACKENDS or not parsed.database:
        raise ConfigError(f"A run is kept in a file of SQLite or a database of PostgreSQL, not in '{backend}'.")
    return parsed


def _said(error: Exception) -> str:
    """What the database said, in a line."""
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0].rstrip(".")


def _schema_of(connection: Connection) -> int:
    """The schema's version; 0 where none was made, or it was broken off."""
    if not inspect(connection).has_table(tables.schema.name):
        return 0
    return connection.scalar(select(tables.schema.c.schema)) or 0
