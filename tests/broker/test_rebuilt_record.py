"""A damaged record that is made anew, by a process that may be killed while it does so."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from broker import rebuilt_record
from broker.database import local_url
from broker.rebuilt_record import reopen
from broker.run_folder import SETTINGS
from broker.settings import RunSettings
from broker.store import Store
from edge_fl.core.errors import StateError
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics

CONFIG = RunConfig(
    run="r", method="fedavg", parameters={}, rounds=9, clients_per_round=2, local_steps=1, batch=1, lr=0.1, seed=0
)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The folder of a run of four finished rounds, whose record is no database."""
    settings = RunSettings(bundle="b", manifest="m", config=CONFIG)
    (tmp_path / SETTINGS).write_bytes(msgspec.json.encode(settings))
    rounds = [RoundMetrics(n, 1.0, None, 0.5, {"a": 9}, {}, {}, {}, tiers={"a": 0, "b": 1}) for n in range(1, 5)]
    lines = [msgspec.json.encode(metrics) + b"\n" for metrics in rounds]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines) + b'{"round":')
    (tmp_path / "state.sqlite").write_bytes(b"no database" * 1000)
    (tmp_path / "state.sqlite-wal").write_bytes(b"no log")
    return tmp_path


def test_what_was_finished_is_there_and_the_next_is_noted_as_lost(damaged: Path) -> None:
    with closing(reopen(damaged)) as store:
        rounds = store.rounds()
    assert [metrics.round for metrics in rounds] == [1, 2, 3, 4, 5]
    assert rounds[-1].uplink == {}
    assert rounds[-1].tiers == {"a": 0, "b": 1}  # nobody knows: both may have been asked
    assert (damaged / "state.sqlite.damaged-1").read_bytes() == b"no database" * 1000
    with closing(reopen(damaged)) as store:
        assert len(store.rounds()) == 5


def test_rounds_that_a_file_shows_are_lost_too(damaged: Path) -> None:
    for name in ("checkpoints/00006.safetensors", "updates/00007.frames", "checkpoints/notes.txt"):
        (damaged / name).parent.mkdir(exist_ok=True)
        (damaged / name).write_bytes(b"")
    with closing(reopen(damaged)) as store:
        assert [(m.round, bool(m.uplink)) for m in store.rounds()][3:] == [
            (4, True),
            (5, False),
            (6, False),
            (7, False),
        ]


@pytest.mark.parametrize("at", ["_make", "_exchange"])
def test_a_process_that_is_killed_meanwhile_loses_nothing(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def killed(*_arguments: object) -> None:
        if at == "_make":
            (damaged / "state.sqlite.new").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rebuilt_record, at, killed)
        with pytest.raises(KeyboardInterrupt):
            reopen(damaged)
    assert (damaged / "state.sqlite").read_bytes() == b"no database" * 1000
    with closing(reopen(damaged)) as store:
        assert len(store.rounds()) == 5


def test_without_a_finished_round_there_is_nothing_to_make_it_of(damaged: Path) -> None:
    (damaged / "metrics.jsonl").write_bytes(b"")
    with pytest.raises(StateError, match="start it anew in another folder"):
        reopen(damaged)
    (damaged / SETTINGS).unlink()
    with pytest.raises(StateError, match="cannot be made anew"):
        reopen(damaged)


def test_a_sound_record_is_left_as_it_is(tmp_path: Path) -> None:
    Store(local_url(tmp_path), "r", b"{}").close()
    with closing(reopen(tmp_path)) as store:
        assert store.settings == b"{}"
    assert not list(tmp_path.glob("*damaged*"))
