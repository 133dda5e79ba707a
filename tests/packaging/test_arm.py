"""The device agent on ARM, emulated."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def conformance(environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, ROOT / "scripts" / "arm_conformance.py", "--json"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def qemu() -> None:
    """Skips where what emulates ARM is not installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    packages = {"qemu-aarch64-static": "qemu-user-static", "debootstrap": "debootstrap"}
    missing = [package for tool, package in packages.items() if shutil.which(tool, path=path) is None]
    if missing:
        reason = f"{' and '.join(missing)} are not installed (Debian: apt-get install {' '.join(missing)})"
        if os.environ.get("EDGE_FL_REQUIRE_QEMU"):
            pytest.fail(f"{reason}, and EDGE_FL_REQUIRE_QEMU is set")
        pytest.skip(reason)


@pytest.mark.packaging
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("qemu")
def test_agents_on_arm_train_the_same_weights() -> None:
    done = conformance(dict(os.environ))
    assert done.returncode == 0, done.stderr
    found = {figures["method"]: figures for figures in json.loads(done.stdout)}
    assert {"fedavg", "fedbiad", "feddrop"} == set(found)
    for figures in found.values():
        assert figures["platforms"][1] == "linux-aarch64"
        assert figures["largest"] <= 1e-5
        assert figures["moved"] > 1e-2


@pytest.mark.matrix
def test_a_missing_emulator_is_said_in_one_sentence(tmp_path: Path) -> None:
    done = conformance({**os.environ, "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})
    assert (done.returncode, done.stdout) == (18, "")
    sentence = "There is no qemu-aarch64-static here: install it (Debian: apt-get install qemu-user-static)."
    assert done.stderr == f"arm-conformance: {sentence}\n"
