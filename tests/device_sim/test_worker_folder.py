"""What a killed process leaves behind is removed by the next one."""

import subprocess
import sys
from pathlib import Path

import pytest

from device_sim.simulation.worker_folder import WorkerFolder

_PROCESS = """
import time
from device_sim.simulation.worker_folder import WorkerFolder
print(WorkerFolder().path, flush=True)
time.sleep(60)
"""


def process() -> tuple[subprocess.Popen[str], Path]:
    """A process with a folder, and the folder, once it is there."""
    started = subprocess.Popen([sys.executable, "-c", _PROCESS], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    return started, Path(started.stdout.readline().strip())


def test_the_folder_of_a_process_that_lives_stays_and_that_of_a_killed_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (killed, gone), (alive, held) = process(), process()
    (gone / "model").mkdir()
    (gone / "model" / "weights").write_bytes(bytes(100))
    killed.kill()
    killed.wait()
    assert gone.exists()
    own = WorkerFolder()
    assert sorted(tmp_path.iterdir()) == sorted([held, own.path])
    own.close()
    assert list(tmp_path.iterdir()) == [held]
    alive.kill()
    alive.wait()


def test_a_folder_without_a_lock_is_somebody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "edge-fl-worker-0").mkdir()
    WorkerFolder().close()
    assert [each.name for each in tmp_path.iterdir()] == ["edge-fl-worker-0"]
