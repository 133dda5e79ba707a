"""Programs in a process of their own: the same bits as in this one, and nothing that they do costs more than a task."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge_fl.core.bundle import Bundle
from edge_fl.core.content import ref_of
from edge_fl.core.errors import (
    ConfigError,
    EdgeFLError,
    FrameError,
    MemoryLimitError,
    RunError,
    RuntimeMissingError,
)
from edge_fl.methods.base import METHODS
from edge_fl.recipes.own import use_code
from edge_fl.runtimes.base import open_runtime
from edge_fl.wire.messages import CollectStatistics, Evaluate
from edge_fl.worker.landlock import landlock_version
from edge_fl.worker.messages import Confinement
from edge_fl.worker.process import WorkerProcess
from edge_fl.worker.seccomp import seccomp_known
from edge_fl.worker.work import LocalWork
from tests.worker.hostile import DEEDS
from tests.worker.tasks import CLIENT, DATA, MEMORY, RUN, model, settings, task

HOSTILE = Path(__file__).with_name("hostile.py")
filtered = pytest.mark.skipif(not seccomp_known(), reason="this kernel or container takes no seccomp filter")
fenced = pytest.mark.skipif(not landlock_version(), reason="this kernel or container has no Landlock")


@pytest.fixture(scope="module")
def hostile(
    digits_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WorkerProcess, bytes]]:
    """Programs that obey a task's seed, an owner with a secret, and a password in the agent's environment."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "secret.txt").write_text("secret")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(METHODS, "_used", {})
        patch.setenv("HOME", str(folder))
        patch.setenv("EDGE_FL_PASSWORD", "hunter2")
        use_code([f"{HOSTILE}:Hostile"])
        work = WorkerProcess(digits_bundle, settings(folder / "empty"))
        work.hold(DATA)
        yield work, model(digits_bundle)
        work.close()


@pytest.mark.parametrize("runtime", ["onnx", "executorch"])
def test_a_task_gives_the_very_bits_of_this_process(digits_bundle: Bundle, tmp_path: Path, runtime: str) -> None:
    there = WorkerProcess(digits_bundle, settings(tmp_path / "empty", runtime=runtime))
    assert there.confinement == Confinement(
        seccomp_known(), landlock_version(), MEMORY
    )  # no library is in the way
    here = LocalWork(CLIENT, open_runtime(runtime, digits_bundle))
    for work in (there, here):
        work.hold(DATA)
    first, second = model(digits_bundle), model(digits_bundle, 1)
    parameters = {"dropout": [500], "dgc.ratio": 0.01}
    ours = here.train(task(first, "fedbiad+dgc", **parameters), first, {})
    theirs = there.train(task(first, "fedbiad+dgc", **parameters), first, {})
    for number in (1, 2):
        assert theirs.frame == ours.frame
        assert theirs.loss == ours.loss
        assert theirs.state.keys() == ours.state.keys()
        assert all(np.array_equal(theirs.state[name], ours.state[name]) for name in ours.state)
        if number == 1:  # what is remembered crosses too
            asked = task(second, "fedbiad+dgc", round=2, **parameters)
            ours, theirs = here.train(asked, second, ours.state), there.train(asked, second, theirs.state)
    evaluate = Evaluate(
        RUN, 1, ref_of(second), width=1000, statistics=1000, batch=20, scores=("accuracy", "macro-f1")
    )
    assert there.score(evaluate, second, {}) == here.score(evaluate, second, {})
    assert there.rehearse(task(first)) > 0
    there.close()


def test_an_error_is_the_one_of_this_process(digits_bundle: Bundle, tmp_path: Path) -> None:
    there = WorkerProcess(digits_bundle, settings(tmp_path / "empty"))
    here = LocalWork(CLIENT, open_runtime("onnx", digits_bundle))
    content = model(digits_bundle)
    damaged = content[:-1] + b"\xff"
    collect = CollectStatistics(RUN, 0, ref_of(content), width=1000, batch=20, seed=1)
    kinds = []
    for work in (there, here):
        work.hold(DATA)
        for ask in (
            lambda work=work: work.train(task(damaged), damaged, {}),
            lambda work=work: work.train(task(content, "nowhere"), content, {}),
            lambda work=work: work.collect(collect, content, {}),
            lambda work=work: work.train(msgspec.structs.replace(task(content), lr=1e9), content, {}),
        ):
            with pytest.raises(EdgeFLError) as raised:
                ask()
            kinds.append((type(raised.value), str(raised.value), getattr(raised.value, "code", "")))
    assert kinds[:4] == kinds[4:]
    assert [kind for kind, _, _ in kinds[:4]] == [FrameError, ConfigError, ConfigError, RunError]
    there.close()


@pytest.mark.parametrize(
    ("deed", "kind", "sentence"),
    [
        ("segfault", RunError, "ended by SIGSEGV: a program is broken, or its runtime is"),
        ("abort", RunError, "ended by SIGABRT"),
        ("leave", RunError, "ended with exit code 0"),
        ("killed", MemoryLimitError, r"was killed \(SIGKILL\)"),
        ("allocate", RunError, "MemoryError in '.*hostile.py', line"),
        ("flood", RunError, "ended by SIGABRT"),
        ("garble", RunError, "speaks nonsense, and was ended"),
        ("secrets", RunError, "ValueError in '.*hostile.py', line [0-9]+: none"),
        pytest.param("connect", RunError, "Operation not permitted", marks=filtered),
        pytest.param("start_program", RunError, "PermissionError in .*hostile.py", marks=filtered),
        pytest.param("become_two", RunError, "Operation not permitted", marks=filtered),
        pytest.param("kill_agent", RunError, "Operation not permitted", marks=filtered),
        pytest.param("lift_limits", RunError, "PermissionError|not allowed to raise", marks=filtered),
        pytest.param("hide_memory", RunError, "Operation not permitted", marks=filtered),
        pytest.param("write_here", RunError, "Operation not permitted|Permission denied", marks=filtered),
        pytest.param("write_anywhere", RunError, "Operation not permitted|Permission denied", marks=filtered),
        pytest.param("read_home", RunError, "Permission denied: '.*secret.txt'", marks=fenced),
        pytest.param("read_agent", RunError, "Permission denied: '/proc/[0-9]+/environ'", marks=fenced),
    ],
)
def test_a_deed_costs_its_task_and_the_next_one_is_done(
    hostile: tuple[WorkerProcess, bytes], deed: str, kind: type[EdgeFLError], sentence: str
) -> None:
    work, content = hostile
    seed = [each.__name__ for each in DEEDS].index(deed)
    with pytest.raises(kind, match=sentence):
        work.train(task(content, "hostile", seed=seed), content, {})
    assert work.train(task(content), content, {}).frame


def test_a_program_without_end_is_ended(hostile: tuple[WorkerProcess, bytes]) -> None:
    work, content = hostile
    seed = [each.__name__ for each in DEEDS].index("loop")
    work._settings, before = replace(work._settings, seconds=1), work._settings
    with pytest.raises(RunError, match=r"took longer than 1 s, and were ended; .* --task-limit"):
        work.train(task(content, "hostile", seed=seed), content, {})
    work._settings = before
    assert work.train(task(content), content, {}).frame


def test_the_process_ends_with_its_agent_or_its_bundle(digits_bundle: Bundle, tmp_path: Path) -> None:
    agent = os.fork()
    if not agent:
        work = WorkerProcess(digits_bundle, settings(tmp_path / "empty"))
        assert work._running is not None
        (tmp_path / "pid").write_text(str(work._running._process.pid))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(agent, 0)
    orphan = int((tmp_path / "pid").read_text())
    closed = WorkerProcess(digits_bundle, settings(tmp_path / "empty"))
    assert closed._running is not None
    process = closed._running._process
    closed.close()
    assert process.returncode == -signal.SIGKILL
    limit = time.monotonic() + 60
    while _lives(orphan):
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_a_runtime_that_is_not_there_is_said_before_any_task(digits_bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(RuntimeMissingError, match="no runtime 'tflite'"):
        WorkerProcess(digits_bundle, settings(tmp_path / "empty", runtime="tflite"))
    with pytest.raises(RuntimeMissingError, match="holds programs for executorch, onnx, torch_eager"):
        WorkerProcess(digits_bundle, settings(tmp_path / "empty", runtime="executorch_training"))


def test_neither_end_needs_more_than_numpy_and_msgspec() -> None:
    code = (
        "import sys, edge_fl.worker.__main__, edge_fl.worker.process;"
        "heavy = {'torch', 'onnx', 'onnxruntime', 'executorch', 'paho', 'typer'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
