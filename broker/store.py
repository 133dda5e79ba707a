"""A run's record in a database: what it was begun with, its rounds, its devices, and the round under way.

Whatever must not be half known is one transaction, and the files that a transaction speaks of are written before it
(models on disk, updates in the hands of the operating system): a process that is killed at any point leaves a run that
goes on as if nothing had been.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update
from sqlalchemy.engine import URL

from broker import tables
from broker.database import Database
from broker.registry import Device
from edge_fl.core.arrays import packed, unpacked
from edge_fl.core.server_half import State
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.wire.messages import Register, Task, Verdict

__all__ = ["Judged", "Rejected", "Store", "UnderWay"]

_LONGEST_REASON = 500  # characters
_ROUNDS_OF_REJECTIONS = 100  # a device that is turned away in every round must not fill the record of a long run


class Judged(msgspec.Struct, frozen=True):
    """What became of a client's update: its SHA-256, and the rejection's code and reason, empty for one that was taken.

    ``samples``, ``loss``, ``offset`` and ``size`` (bytes) are those of its :class:`~broker.rounds.Report`, and
    ``trained`` is the round of its task.
    """

    digest: str
    code: str = ""
    reason: str = ""
    samples: int = 0
    loss: float = 0.0
    offset: int = 0
    size: int = 0
    trained: int = 0

    def verdict(self, run: str, round: int) -> Verdict:
        """What the client is told of it."""
        return Verdict(run, round, self.digest, accepted=not self.code, code=self.code, reason=self.reason)


class Rejected(msgspec.Struct, frozen=True):
    """What was turned away of a client (empty: of strangers) while a round (0: none) was under way: how often, for the
    reason of that code, as it was last put.
    """

    round: int
    client: str
    code: str
    count: int
    reason: str


@dataclass(frozen=True)
class UnderWay:
    """A round that was broken off: whom it asked, in which attempt last, what became of the updates, and
    rejections.
    """

    attempt: int
    tasks: dict[str, Task]
    judged: dict[str, Judged]
    rejections: Counter[str]


class Store:
    """The record of one run, written by one process at a time, in a :class:`~broker.database.Database`.

    Parameters are those of :class:`~broker.database.Database`, and so is what making one raises; all methods raise
    StateError when the record is damaged or cannot be had.

    Attributes
    ----------
    settings
        What the run was begun with, as JSON.
    """

    def __init__(
        self, url: str | URL, run: str | None = None, settings: bytes | None = None, *, watch: bool = False
    ) -> None:
        self._database = Database(url, run, settings, watch=watch)
        self._run, self.settings = self._database.run, self._database.settings

    def check(self) -> None:
        """Look at all of it; DamagedRecordError where something is wrong."""
        self._database.check()

    def at_work(self) -> bool:
        """Whether some process has the right to write the run."""
        return self._database.at_work()

    def close(self) -> None:
        """Let another process have the run."""
        self._database.close()

    # --- finished rounds

    def rounds(self) -> list[RoundMetrics]:
        """Every finished round, in order."""
        table = tables.rounds
        with self._database.transaction() as connection:
            rows = connection.scalars(
                select(table.c.metrics).where(table.c.run == self._run).order_by(table.c.number)
            )
            return [msgspec.json.decode(row, type=RoundMetrics) for row in rows]

    def close_round(self, metrics: RoundMetrics, states: Mapping[str, State] | None = None) -> None:
        """Finish a round, whole or not at all; ``states`` are what methods remember of its simulated clients.

        How its updates were judged is forgotten; what was turned away is kept by client for the last hundred rounds,
        and by code in the metrics of all.
        """
        own: dict[str, Any] = {"run": self._run}
        clients = [
            {
                **own,
                "client": client,
                "accepted": metrics.round - metrics.stale.get(client, 0),
                "state": packed(state) if state else None,
            }
            for client, state in (states or {}).items()
        ]
        finished = own | {"number": metrics.round, "metrics": msgspec.json.encode(metrics)}
        with self._database.transaction() as connection:
            connection.execute(insert(tables.rounds), finished)
            _replace(connection, tables.devices, clients)
            for table in (tables.asked, tables.updates):
                connection.execute(delete(table).where(table.c.run == self._run))
            table = tables.rejections
            old = table.c.round.between(1, metrics.round - _ROUNDS_OF_REJECTIONS)
            connection.execute(delete(table).where(table.c.run == self._run, old))

    # --- devices

    def devices(self) -> list[Device]:
        """Every device that registered, in the order of their ids."""
        table = tables.devices
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(table.c.client, table.c.profile, table.c.accepted, table.c.digest)
                .where(table.c.run == self._run, table.c.profile.is_not(None))
                .order_by(table.c.client)
            ).all()
            return [
                Device(client, msgspec.msgpack.decode(profile, type=Register), accepted, digest)
                for client, profile, accepted, digest in rows
            ]

    def register(self, device: Device) -> None:
        """Keep a device as it is now."""
        with self._database.transaction() as connection:
            profile = msgspec.msgpack.encode(device.profile)
            row = {
                "client": device.client,
                "profile": profile,
                "accepted": device.accepted,
                "digest": device.digest,
            }
            _replace(connection, tables.devices, [{"run": self._run, **row}])

    def accepted(self) -> dict[str, int]:
        """The last round whose update was taken, by client."""
        table = tables.devices
        with self._database.transaction() as connection:
            rows = connection.execute(select(table.c.client, table.c.accepted).where(table.c.run == self._run))
            return {client: accepted for client, accepted in rows}  # noqa: C416  (dict() takes no Rows, says mypy)

    def remembering(self) -> set[str]:
        """The simulated clients of which the method may remember something; of all others :meth:`states` are empty."""
        table = tables.devices
        with self._database.transaction() as connection:
            query = select(table.c.client).where(table.c.run == self._run, table.c.state.is_not(None))
            return set(connection.scalars(query))

    def states(self, clients: Collection[str]) -> dict[str, State]:
        """What the method remembers of each of some simulated clients; empty at first."""
        table = tables.devices
        with self._database.transaction() as connection:
            query = select(table.c.client, table.c.state).where(
                table.c.run == self._run, table.c.client.in_(clients), table.c.state.is_not(None)
            )
            held = {client: unpacked(state) for client, state in connection.execute(query)}
        return {client: held.get(client, {}) for client in clients}

    # --- the round under way

    def ask(self, attempt: int, tasks: Mapping[str, Task]) -> None:
        """Keep what clients are about to be asked in an attempt (0, 1, ...) at the round."""
        rows = [
            {
                "run": self._run,
                "round": task.round,
                "client": client,
                "attempt": attempt,
                "task": msgspec.msgpack.encode(task),
            }
            for client, task in tasks.items()
        ]
        with self._database.transaction() as connection:
            _replace(connection, tables.asked, rows)

    def forget_unanswered(self) -> None:
        """Whoever was asked and has no update taken is to be asked anew: the model that the task names is gone."""
        asked, updates = tables.asked, tables.updates
        with self._database.transaction() as connection:
            taken = select(updates.c.client).where(updates.c.run == self._run, updates.c.code == "")
            for table in (asked, updates):
                connection.execute(delete(table).where(table.c.run == self._run, table.c.client.not_in(taken)))

    def judge(self, round: int, judged: Mapping[str, Judged]) -> None:
        """Keep what became of clients' updates; one that was taken is its client's last from now on."""
        own = {"run": self._run, "round": round}
        rows = [
            {**own, "client": client, **msgspec.structs.asdict(one), "reason": _storable(one.reason)}
            for client, one in judged.items()
        ]
        taken = [
            {"of": client, "last": one.digest, "as": one.trained} for client, one in judged.items() if not one.code
        ]
        devices = tables.devices
        with self._database.transaction() as connection:
            _replace(connection, tables.updates, rows)
            if taken:
                connection.execute(
                    update(devices)
                    .where(devices.c.run == self._run, devices.c.client == bindparam("of"))
                    .values(accepted=bindparam("as"), digest=bindparam("last")),
                    taken,
                )

    def reject(self, turned_away: Mapping[tuple[int, str, str], tuple[int, str]]) -> None:
        """Count what was turned away: while which round (0: none) was under way, of whom and by which code; how often,
        and the last reason.
        """
        table = tables.rejections
        with self._database.transaction() as connection:
            for (number, client, code), (times, reason) in turned_away.items():
                key = {"run": self._run, "round": number, "client": client, "code": code}
                counted = connection.execute(
                    update(table)
                    .where(*(table.c[name] == value for name, value in key.items()))
                    .values(count=table.c.count + times, reason=_storable(reason))
                )
                if counted.rowcount == 0:
                    connection.execute(insert(table), {**key, "count": times, "reason": _storable(reason)})

    def rejected(self) -> list[Rejected]:
        """What was turned away, by round and client, as far back as it is kept."""
        table = tables.rejections
        query = select(table).where(table.c.run == self._run).order_by(table.c.round, table.c.client, table.c.code)
        with self._database.transaction() as connection:
            rows = connection.execute(query).mappings()
            return [Rejected(*(row[name] for name in Rejected.__struct_fields__)) for row in rows]

    def under_way(self, round: int) -> UnderWay | None:
        """What is known of ``round``, which is not finished; None if no client was asked yet."""
        with self._database.transaction() as connection:
            table = tables.asked  # emptied when a round closes; of a client's two tasks the later stands
            query = select(table).where(table.c.run == self._run).order_by(table.c.round)
            asked = connection.execute(query).mappings().all()
            judged = self._of_round(connection, tables.updates, round)
            rejected = self._of_round(connection, tables.rejections, round)
            if not asked:
                return None
            counts: Counter[str] = Counter()
            for row in rejected:
                counts[row["code"]] += row["count"]
            return UnderWay(
                attempt=max(row["attempt"] for row in asked),
                tasks={row["client"]: msgspec.msgpack.decode(row["task"], type=Task) for row in asked},
                judged={
                    row["client"]: Judged(*(row[name] for name in Judged.__struct_fields__)) for row in judged
                },
                rejections=counts,
            )

    def _of_round(self, connection: Connection, table: Table, round: int) -> list[dict[str, Any]]:
        query = select(table).where(table.c.run == self._run, table.c.round == round)
        return [dict(row) for row in connection.execute(query.order_by(table.c.client)).mappings()]


def _storable(reason: str) -> str:
    """What a device may have had its words in: without NUL, which PostgreSQL does not take, and not without end."""
    return reason.replace("\0", "")[:_LONGEST_REASON]


def _replace(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows in place of those with the same key."""
    if not rows:
        return
    keys = [column.name for column in table.primary_key]
    same = (table.c[name] == bindparam(f"key_{name}") for name in keys)
    connection.execute(delete(table).where(*same), [{f"key_{name}": row[name] for name in keys} for row in rows])
    connection.execute(insert(table), [dict(row) for row in rows])
