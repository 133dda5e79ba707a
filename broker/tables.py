"""The tables of a run's record, on SQLite and PostgreSQL alike. Weights and updates are files beside it."""

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Integer, LargeBinary, MetaData, String, Table, Text

__all__ = ["SCHEMA", "asked", "devices", "metadata", "rejections", "rounds", "runs", "schema", "updates"]

SCHEMA = 3

metadata = MetaData()

schema = Table("edge_fl_schema", metadata, Column("schema", Integer, nullable=False))
"""One row, written last: a record without it was never finished being made."""

runs = Table(
    "edge_fl_runs",
    metadata,
    Column("run", String(64), primary_key=True),
    Column("settings", LargeBinary, nullable=False),
)
"""``settings`` are what the run was begun with, as JSON."""

rounds = Table(
    "edge_fl_rounds",
    metadata,
    Column("run", ForeignKey("edge_fl_runs.run"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("metrics", LargeBinary, nullable=False),
)
"""The finished rounds; ``metrics`` is a line of metrics.jsonl."""

devices = Table(
    "edge_fl_devices",
    metadata,
    Column("run", ForeignKey("edge_fl_runs.run"), primary_key=True),
    Column("client", String(64), primary_key=True),
    Column("profile", LargeBinary),
    Column("accepted", Integer, nullable=False, default=0),
    Column("digest", String(64), nullable=False, default=""),
    Column("state", LargeBinary),
)
"""``accepted`` is the last round whose update was taken, ``digest`` that update's. ``profile`` is a real device's
registration, ``state`` what the method remembers of a simulated one: a real one keeps that itself.
"""

asked = Table(
    "edge_fl_asked",
    metadata,
    Column("run", ForeignKey("edge_fl_runs.run"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("client", String(64), primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("task", LargeBinary, nullable=False),
)
"""What the clients of the round under way were asked, and in which of its attempts (0, 1, ...)."""

updates = Table(
    "edge_fl_updates",
    metadata,
    Column("run", ForeignKey("edge_fl_runs.run"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("client", String(64), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("code", String(32), nullable=False, default=""),
    Column("reason", Text, nullable=False, default=""),
    Column("offset", BigInteger, nullable=False, default=0),
    Column("size", BigInteger, nullable=False, default=0),
    Column("samples", BigInteger, nullable=False, default=0),
    Column("loss", Float(53), nullable=False, default=0.0),
    Column("trained", Integer, nullable=False, default=0),
)
"""How each update was judged: taken where ``code`` is empty, ``size`` bytes at ``offset`` of the round's file, with its
header's figures; ``trained`` is the round of its task.
"""

rejections = Table(
    "edge_fl_rejections",
    metadata,
    Column("run", ForeignKey("edge_fl_runs.run"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("client", String(64), primary_key=True),
    Column("code", String(32), primary_key=True),
    Column("count", Integer, nullable=False),
    Column("reason", Text, nullable=False),
)
"""Messages and updates turned away in the last rounds: how many for a code, and what was said of the last. ``round`` is
the one under way, 0 where none was.
"""
