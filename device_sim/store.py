"""What a simulation needs to be continued, in ``state.sqlite`` of its run folder: one transaction a round.

The file holds what the run was started with, the model after the last finished round, what the server has learned
besides, each client's state (scores, error feedback), and every round's metrics. A process that is killed leaves
the last finished round.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker.config import RunConfig
from broker.run_folder import RoundMetrics
from device_sim.settings import Population, TrainerSettings
from edge_fl.arrays import packed, unpacked
from edge_fl.errors import StateError
from edge_fl.server_half import State

__all__ = ["SimulationSettings", "Store"]

_SCHEMA = 2
_TABLES = """
CREATE TABLE settings (json BLOB NOT NULL);
CREATE TABLE rounds (number INTEGER PRIMARY KEY, json BLOB NOT NULL);
CREATE TABLE clients (client TEXT PRIMARY KEY, round INTEGER NOT NULL, state BLOB NOT NULL);
CREATE TABLE kept (name TEXT PRIMARY KEY, arrays BLOB NOT NULL);
"""


class SimulationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a simulation was started with: ``bundle`` is its folder, ``manifest`` the SHA-256 of its manifest."""

    bundle: str
    manifest: str
    config: RunConfig
    population: Population
    trainer: TrainerSettings


class Store:
    """The state of one simulation, held by one process at a time.

    Parameters
    ----------
    root
        The run folder.
    settings
        Those of a new run; None to continue the one in ``root``.

    Raises
    ------
    StateError
        When there is nothing to continue, or another run in ``root``, or the file is damaged, in use, of another
        schema, or cannot be written.
    """

    def __init__(self, root: Path, settings: SimulationSettings | None = None) -> None:
        self._path = root / "state.sqlite"
        if settings is None and not self._path.exists():
            raise StateError(f"'{root}' holds no simulation to continue: it has no {self._path.name}.")
        with self._errors():
            root.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self._path, timeout=0, isolation_level=None)
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            (schema,) = self._database.execute("PRAGMA user_version").fetchone()
            if settings is not None and schema == 0:
                self._create(settings)
        if reason := _refusal(root, schema, new=settings is not None):
            self._database.close()
            raise StateError(reason)
        self.settings = settings or self._settings()

    def rounds(self) -> list[RoundMetrics]:
        """Every finished round, in order."""
        with self._errors():
            rows = self._database.execute("SELECT json FROM rounds ORDER BY number").fetchall()
            return [msgspec.json.decode(json, type=RoundMetrics) for (json,) in rows]

    def weights(self) -> dict[str, NDArray[np.float32]] | None:
        """The model after the last finished round; None before the first."""
        return self._kept("weights")

    def learned(self) -> State:
        """What the server had learned by then, besides the weights."""
        return self._kept("learned") or {}

    def client(self, client: str) -> State:
        """The state that a client's last accepted update left; empty at first."""
        with self._errors():
            row = self._database.execute("SELECT state FROM clients WHERE client = ?", (client,)).fetchone()
            return {} if row is None else unpacked(row[0])

    def accepted(self) -> dict[str, int]:
        """The last round whose update was taken, by client."""
        with self._errors():
            return dict(self._database.execute("SELECT client, round FROM clients").fetchall())

    def close_round(
        self, metrics: RoundMetrics, weights: State, learned: State, clients: Mapping[str, State]
    ) -> None:
        """Keep a finished round, whole or not at all; ``clients`` are the states of those who took part."""
        rows = [(client, metrics.round, packed(state)) for client, state in clients.items()]
        kept = [("weights", packed(weights)), ("learned", packed(learned))]
        with self._errors():
            self._database.execute("BEGIN")
            self._database.execute(
                "INSERT INTO rounds VALUES (?, ?)", (metrics.round, msgspec.json.encode(metrics))
            )
            self._database.executemany("INSERT OR REPLACE INTO clients VALUES (?, ?, ?)", rows)
            self._database.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", kept)
            self._database.execute("COMMIT")

    def close(self) -> None:
        """Let another process have the run."""
        self._database.close()

    def _create(self, settings: SimulationSettings) -> None:
        self._database.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_SCHEMA};")
        self._database.execute("INSERT INTO settings VALUES (?)", (msgspec.json.encode(settings),))
        self._database.execute("COMMIT")

    def _settings(self) -> SimulationSettings:
        with self._errors():
            (json,) = self._database.execute("SELECT json FROM settings").fetchone()
            return msgspec.json.decode(json, type=SimulationSettings)

    def _kept(self, name: str) -> dict[str, NDArray[Any]] | None:
        with self._errors():
            row = self._database.execute("SELECT arrays FROM kept WHERE name = ?", (name,)).fetchone()
            return None if row is None else unpacked(row[0])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StateError(f"'{self._path}' cannot be used: {error}.") from error
        except OSError as error:
            raise StateError(f"'{self._path}' cannot be used: {error.strerror}.") from error
        except (sqlite3.DatabaseError, msgspec.DecodeError, TypeError, ValueError, EOFError, BadZipFile) as error:
            raise StateError(f"'{self._path}' is damaged ({error}); the run cannot be continued.") from error


def _refusal(root: Path, schema: int, *, new: bool) -> str | None:
    """Why a file of this schema version (0: nothing was kept yet) cannot hold a new run, or be continued."""
    if new:
        return f"'{root}' already holds a run; continue it with --resume." if schema else None
    if schema == 0:
        return f"'{root}' holds no simulation to continue: it was stopped before it began; start it again."
    if schema != _SCHEMA:
        return f"'{root / 'state.sqlite'}' has schema version {schema}; this edge-fl reads version {_SCHEMA}."
    return None
