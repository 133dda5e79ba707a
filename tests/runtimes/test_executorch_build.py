"""Compiling the shim: in processes of their own, as what one process has loaded it keeps."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edge_fl.runtimes._executorch.build import EXECUTORCH

ROOT = Path(__file__).parents[2]
OPEN = "from edge_fl.runtimes._executorch.native import set_threads; set_threads(1)"


def start(cache: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    variables = {**os.environ, "XDG_CACHE_HOME": str(cache), **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *arguments], text=True, env=variables, **pipes)


def build(cache: Path, **environment: str) -> tuple[int, str, str]:
    process = start(cache, "-m", "edge_fl", "device", "build-runtime", **environment)
    out, err = process.communicate(timeout=100)
    return process.returncode, out.strip(), err.strip()


def refused(cache: Path, **environment: str) -> str:
    code, _, err = build(cache, **environment)
    assert code == 18
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("edge-fl: ")
    assert last.endswith(".")
    return last


def wheel(folder: Path, version: str) -> str:
    """An installed executorch of which there is nothing but its description; returns a PYTHONPATH to find it by."""
    info = folder / f"executorch-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: executorch\nVersion: {version}\n")
    return os.pathsep.join([str(folder), *sys.path])


def test_it_is_compiled_once_and_says_so(tmp_path: Path) -> None:
    code, out, said = build(tmp_path)
    assert code == 0, said
    built = Path(out)
    assert built.parent == tmp_path / "edge-fl"
    assert EXECUTORCH in built.name
    assert said.startswith("Compiling the ExecuTorch runtime")
    made = built.stat().st_mtime_ns

    assert build(tmp_path, CXX="no-compiler-is-needed-now") == (0, out, "")
    assert built.stat().st_mtime_ns == made
    assert list(built.parent.iterdir()) == [built]


def test_processes_that_build_at_once_do_not_clash(tmp_path: Path) -> None:
    processes = [start(tmp_path, "-c", OPEN) for _ in range(3)]
    ended = [(process.communicate(timeout=100)[1], process.returncode) for process in processes]

    assert ended == [("", 0)] * 3
    assert len(list((tmp_path / "edge-fl").iterdir())) == 1


def test_a_missing_compiler_is_told_in_a_sentence(tmp_path: Path) -> None:
    assert "there is no 'no-such-compiler'" in refused(tmp_path, CXX="no-such-compiler")


def test_what_the_compiler_says_is_told(tmp_path: Path) -> None:
    assert "-fno-such-option" in refused(tmp_path, CXX="g++ -fno-such-option")
    assert not list((tmp_path / "edge-fl").iterdir())


def test_what_does_not_load_is_not_kept(tmp_path: Path) -> None:
    assert "cannot be loaded" in refused(tmp_path, CXX="g++ -c")
    assert not list((tmp_path / "edge-fl").iterdir())


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "edge-fl").write_text("in the way")
    assert f"cannot be built in '{tmp_path / 'edge-fl'}'" in refused(tmp_path)


@pytest.mark.parametrize(
    ("version", "sentence"),
    [("1.4.0", f"1.4.0 is installed.*{EXECUTORCH}"), (EXECUTORCH, "has no '.*libexecutorch.so'")],
)
def test_another_wheel_is_refused(version: str, sentence: str, tmp_path: Path) -> None:
    said = refused(tmp_path / "cache", PYTHONPATH=wheel(tmp_path / "wheel", version))
    assert re.search(sentence, said)


def test_a_missing_wheel_is_told(tmp_path: Path) -> None:
    code = "from edge_fl.runtimes._executorch.build import build_runtime; build_runtime(print)"
    process = start(tmp_path, "-S", "-c", code, PYTHONPATH=str(ROOT))  # -S: as if nothing were installed
    _, err = process.communicate(timeout=100)

    assert process.returncode
    assert "RuntimeMissingError: The package executorch is not installed" in err
