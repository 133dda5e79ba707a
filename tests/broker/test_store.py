"""A run's record: what is kept of a round under way, on SQLite and on a real PostgreSQL."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import create_engine, text

from broker.database import local_url
from broker.registry import Device
from broker.store import Judged, Rejected, Store
from broker.tables import SCHEMA
from edge_fl.core.content import ref_of
from edge_fl.core.errors import ConfigError, StateError
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.wire.messages import PROTOCOL, Register, Task
from tests.postgres import postgres

SETTINGS = b'{"kind":"test"}'
PROFILE = Register(protocol=PROTOCOL, agent="1", runtime="onnx", samples=10)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(local_url(tmp_path))
        return
    server = request.getfixturevalue("server")
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE DATABASE runs"))
    yield server.removesuffix("postgres") + "runs"
    with engine.connect() as connection:
        connection.execute(text("DROP DATABASE runs WITH (FORCE)"))
    engine.dispose()


def task(client: str, round: int = 3) -> Task:
    return Task(
        run="run",
        round=round,
        accepted=0,
        model=ref_of(client.encode()),
        method="fedbiad",
        parameters={"dropout": [500]},
        steps=1,
        batch=1,
        lr=0.1,
        seed=0,
        tier=0,
        pattern=b"\x00\xff",
        changes=(ref_of(b"change"),),
    )


def metrics(round: int) -> RoundMetrics:
    return RoundMetrics(round, 1.0, 0.25, 0.125, {"a": 1}, {"a": 2}, {"b": "lost"}, {"late": 3}, {"accuracy": 0.5})


def again(url: str) -> Store:
    return Store(url, "run")


def test_what_a_broken_off_round_knew_is_found_again(url: str) -> None:
    store = Store(url, "run", SETTINGS)
    for client in ("a", "b"):
        store.register(Device(client, PROFILE))
    assert store.under_way(3) is None
    store.ask(0, {"a": task("a"), "b": task("b")})
    store.ask(1, {"b": task("b"), "c": task("c")})
    store.judge(3, {"b": Judged("d" * 64, "stale", "It is old.")})
    store.judge(3, {"a": Judged("e" * 64, samples=7, loss=0.1, offset=1 << 40, size=99, trained=3)})
    store.reject({(3, "b", "stale"): (2, "It was old."), (0, "", "topic"): (1, "Elsewhere.")})
    store.reject({(3, "b", "stale"): (1, "It is old.")})
    store.close()

    store = again(url)
    found = store.under_way(3)
    assert found is not None
    assert found.attempt == 1
    assert found.tasks == {client: task(client) for client in "abc"}
    assert found.judged == {
        "a": Judged("e" * 64, samples=7, loss=0.1, offset=1 << 40, size=99, trained=3),
        "b": Judged("d" * 64, "stale", "It is old."),
    }
    assert found.judged["b"].verdict("run", 3).code == "stale"
    assert found.rejections == {"stale": 3}
    assert store.devices() == [Device("a", PROFILE, 3, "e" * 64), Device("b", PROFILE, 0, "")]
    assert store.settings == SETTINGS
    store.close()


def test_an_update_that_was_refused_first_may_be_taken_later(url: str) -> None:
    store = Store(url, "run", SETTINGS)
    store.register(Device("a", PROFILE))
    store.ask(0, {"a": task("a")})
    store.judge(3, {"a": Judged("d" * 64, "checksum", "Damaged.")})
    store.judge(3, {"a": Judged("e" * 64, samples=7, trained=3)})
    found = store.under_way(3)
    assert found is not None
    assert found.judged == {"a": Judged("e" * 64, samples=7, trained=3)}
    assert store.accepted() == {"a": 3}
    store.close()


def test_whatever_a_device_says_can_be_kept(url: str) -> None:
    store = Store(url, "run", SETTINGS)
    store.ask(0, {"a": task("a")})
    said = "nul \0 and \ud7ff" + "x" * 9999
    store.judge(3, {"a": Judged("d" * 64, "stale", said, samples=2**31, size=2**40)})
    store.reject({(3, "a", "stale"): (1, "\0" * 9999)})
    found = store.under_way(3)
    assert found is not None
    assert found.judged["a"].reason.startswith("nul  and")
    assert (len(found.judged["a"].reason), found.judged["a"].size) == (500, 2**40)
    assert store.rejected()[0].reason == ""
    store.close()


@pytest.mark.postgres
def test_who_loses_the_connection_loses_the_right_to_write(server: str) -> None:
    store = Store(server, "lost", SETTINGS)
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        others = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query <> ''"
        )
        connection.execute(text(others))
    engine.dispose()
    heir = Store(server, "lost")
    with pytest.raises(StateError, match="cannot be used"):
        store.close_round(metrics(1))
    with pytest.raises(StateError, match="Another process is at work on run 'lost'"):
        store.close_round(metrics(1))
    heir.close_round(metrics(1))
    heir.close()
    store.close()


def test_a_finished_round_is_no_longer_under_way(url: str) -> None:
    store = Store(url, "run", SETTINGS)
    store.ask(0, {"a": task("a", 1)})
    store.close_round(metrics(1), {"a": {"scores": np.arange(3.0)}, "b": {}, "c": {"once": np.ones(1)}})
    assert store.remembering() == {"a", "c"}
    store.close_round(metrics(2), {"c": {}})
    store.close()
    store = again(url)
    assert store.rounds() == [metrics(1), metrics(2)]
    assert store.under_way(1) is None
    found = store.states(["c", "a", "b"])
    assert list(found) == ["c", "a", "b"]
    assert found["a"]["scores"].tolist() == [0, 1, 2]
    assert found["b"] == found["c"] == {}
    assert store.remembering() == {"a"}
    assert store.accepted() == {"a": 1, "b": 1, "c": 2}
    assert store.devices() == []  # those of a simulation never registered
    store.close()


def test_a_long_run_does_not_fill_its_record(url: str) -> None:
    store = Store(url, "run", SETTINGS)
    store.reject({(0, "a", "late"): (1, "Before all rounds.")})
    for number in range(1, 104):
        store.ask(0, {"a": task("a", number)})
        store.judge(number, {"a": Judged("d" * 64, "stale", "It is old.")})
        store.reject({(number, "a", "stale"): (1, "It is old.")})
        store.close_round(metrics(number))
    assert [rejected.round for rejected in store.rejected()] == [0, *range(4, 104)]
    store.close()
    engine = create_engine(url)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM edge_fl_updates")) == 0
    engine.dispose()


def test_one_process_at_a_time_has_a_run_and_others_may_watch(url: str) -> None:
    store = Store(url, "run", SETTINGS)
    store.reject({(3, "a", "stale"): (1, "It is old.")})
    watcher = Store(url, "run", watch=True)
    assert watcher.rejected() == [Rejected(3, "a", "stale", 1, "It is old.")]
    watcher.close()
    with pytest.raises(StateError, match="Another process is at work on"):
        again(url)
    store.close()
    again(url).close()


def test_what_is_not_there_or_there_already_is_refused(url: str) -> None:
    with pytest.raises(StateError, match=r"There is no run in|holds no run 'run'"):
        again(url)
    Store(url, "run", SETTINGS).close()
    with pytest.raises(StateError, match="already holds a run; continue it with --resume"):
        Store(url, "run", SETTINGS)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE edge_fl_schema SET schema = 7"))
    engine.dispose()
    with pytest.raises(StateError, match=f"has schema version 7; this edge-fl reads version {SCHEMA}"):
        again(url)


@pytest.mark.postgres
def test_a_database_holds_several_runs_and_a_file_one(tmp_path: Path, server: str) -> None:
    Store(server, "one", SETTINGS).close()
    two = Store(server, "two", b"{}")
    two.close_round(metrics(1))
    two.close()
    one = Store(server, "one")
    assert (one.settings, one.rounds()) == (SETTINGS, [])
    one.close()
    Store(local_url(tmp_path), "one", SETTINGS).close()
    with pytest.raises(StateError, match="already holds a run"):
        Store(local_url(tmp_path), "two", SETTINGS)


def test_a_record_that_was_never_finished_being_made_is_made_anew(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "state.sqlite")
    database.execute("CREATE TABLE edge_fl_schema (schema INTEGER NOT NULL)")
    database.close()
    with pytest.raises(StateError, match="stopped before it began; start it again"):
        Store(local_url(tmp_path))
    Store(local_url(tmp_path), "run", SETTINGS).close()
    assert Store(local_url(tmp_path)).settings == SETTINGS


def test_a_damaged_record_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(StateError, match=r"is damaged \(file is not a database\)"):
        Store(local_url(tmp_path))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgres", "is no database URL"),
        ("mysql://host/runs", "is no database URL|a database of PostgreSQL, not in 'mysql'"),
        ("nothing://host", "is no database URL"),
        ("postgres://user:secret@host/runs", "is no database URL"),
        ("postgresql://user:secret@host:x/runs", "is no database URL"),
        ("postgresql://user:secret@host", "a database of PostgreSQL"),
        ("sqlite://", "a file of SQLite"),
    ],
)
def test_only_what_is_a_database_url_is_taken(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        Store(url, "run", SETTINGS)
    assert "secret" not in str(refused.value)


def test_a_server_that_does_not_answer_is_told_of() -> None:
    with pytest.raises(StateError, match="cannot be used: "):
        Store("postgresql+psycopg://nobody@127.0.0.1:1/none", "run", SETTINGS)
