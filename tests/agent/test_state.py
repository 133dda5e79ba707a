"""The state folder: who holds it, and method state that advances only with an accepted round."""

from pathlib import Path

import numpy as np
import pytest

from edge_fl.agent.state import MethodState, StateFolder
from edge_fl.core.errors import ConfigError, StateError


def scores(value: float) -> dict[str, np.ndarray]:
    return {"scores": np.array([value])}


def test_state_advances_only_when_accepted(tmp_path: Path) -> None:
    state = MethodState(tmp_path)
    assert state.before(accepted=0) == {}
    state.stage(1, scores(1.0))
    state.accept()
    assert state.before(accepted=1)["scores"] == 1.0
    state.stage(2, scores(2.0))
    state.discard()
    assert state.before(accepted=1)["scores"] == 1.0


def test_a_retried_round_starts_from_the_state_before_it(tmp_path: Path) -> None:
    state = MethodState(tmp_path)
    state.stage(1, scores(1.0))
    state.accept()
    state.stage(2, scores(2.0))  # killed here: no verdict was heard, and the coordinator took nothing
    assert MethodState(tmp_path).before(accepted=1)["scores"] == 1.0


def test_a_verdict_lost_on_the_way_is_learned_from_the_next_task(tmp_path: Path) -> None:
    MethodState(tmp_path).stage(2, scores(2.0))
    assert MethodState(tmp_path).before(accepted=2)["scores"] == 2.0
    assert MethodState(tmp_path).before(accepted=2)["scores"] == 2.0


def test_a_folder_serves_one_process_and_one_client(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state", "a")
    with pytest.raises(StateError, match="Another device process is using"):
        StateFolder(tmp_path / "state", "a")
    folder.close()
    with pytest.raises(StateError, match="belongs to client 'a', not to 'b'"):
        StateFolder(tmp_path / "state", "b")
    StateFolder(tmp_path / "state", "a").close()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"other": 1}'])
def test_a_damaged_identity_is_one_sentence(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "identity.json").write_bytes(damage)
    with pytest.raises(StateError, match="is damaged; remove it"):
        StateFolder(tmp_path, "a")


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"not a zip file"])
@pytest.mark.parametrize("name", ["accepted", "staged"])
def test_damaged_method_state_is_put_aside_and_the_device_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes, name: str
) -> None:
    (tmp_path / f"{name}.npz").write_bytes(damage)
    state = MethodState(tmp_path)
    assert state.before(accepted=1) == {}
    assert state.last() == 0
    assert f"{name}.npz' is damaged" in caplog.text
    assert (tmp_path / f"{name}.damaged").read_bytes() == damage
    state.stage(2, scores(1.0))
    state.accept()
    assert state.last() == 2


def test_a_run_cannot_name_a_folder_outside(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state", "a")
    with pytest.raises(ConfigError):
        folder.method("../../etc")
    folder.close()


def test_only_the_current_run_is_remembered(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state", "a")
    folder.method("run-1").stage(1, scores(1.0))
    folder.method("run-1").accept()
    assert folder.method("run-1").before(accepted=1)["scores"] == 1.0
    assert folder.method("run-2").before(accepted=0) == {}
    assert folder.method("run-1").before(accepted=1) == {}
    folder.close()


def test_only_the_current_bundle_is_kept(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state", "a")
    old = folder.bundle("0" * 64)
    old.mkdir(parents=True)
    assert folder.bundle("0" * 64).exists()
    folder.bundle("1" * 64)
    assert not old.exists()
    folder.close()


def test_a_device_keeps_its_secret_to_itself(tmp_path: Path) -> None:
    folder, other = StateFolder(tmp_path / "a", "a"), StateFolder(tmp_path / "b", "b")
    secret, path = folder.secret(), tmp_path / "a" / "noise.key"
    assert len(secret) == 32
    assert folder.secret() == secret
    assert other.secret() != secret
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(b"half")
    assert len(folder.secret()) == 32
    path.unlink()
    path.mkdir()
    with pytest.raises(StateError, match="cannot be read"):
        folder.secret()


def test_what_a_round_left_is_told_although_its_verdict_is_lost(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state", "client-1")
    method = folder.method("run")
    method.stage(1, {"w": np.ones(2)})
    method.accept()
    method.stage(2, {"w": np.full(2, 2.0)})
    for number, value in ((1, 1.0), (2, 2.0), (3, 1.0)):
        assert folder.remembered("run", number)["w"].tolist() == [value, value]
    assert folder.remembered("other", 2) == {}
    assert method.before(2)["w"].tolist() == [2.0, 2.0]  # nothing was removed
    folder.close()
