"""The systemd unit: systemd takes it, it gives an agent little to harm, and its command is one that edge-fl takes."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGING = Path(__file__).parents[2] / "packaging"
PROGRAM = "/opt/edge-fl/bin/edge-fl"
LATER = re.compile(r"Unknown key (name )?'(RestartSteps|RestartMaxDelaySec)' in section")  # before systemd 254


def analyzed(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with a program that is there."""
    path = tmp_path / "edge-fl-device.service"
    path.write_text((PACKAGING / path.name).read_text().replace(PROGRAM, sys.executable))
    return path


def test_systemd_takes_it(unit: Path) -> None:
    done = analyzed("verify", "--man=no", unit)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if unit.name in line and not LATER.search(line)] == []


def test_systemd_refuses_another(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("Type=exec", "Type=daemon"))
    done = analyzed("verify", "--man=no", unit)
    assert "Failed to parse service type" in done.stderr


def test_it_exposes_little(unit: Path) -> None:
    done = analyzed(
        "security", "--offline=true", "--threshold=20", unit
    )  # tenths; 10.0 is a service without any fence
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr


def test_its_command_is_one(tmp_path: Path) -> None:
    unit = (PACKAGING / "edge-fl-device.service").read_text()
    (command,) = re.findall(rf"^ExecStart={PROGRAM} (.*)$", unit, re.MULTILINE)
    lines = (PACKAGING / "edge-fl-device.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    given |= {"BROKER": "mqtt://127.0.0.1:1", "STATE_DIRECTORY": str(tmp_path / "state")}
    words = [given[word[2:-1]] if word.startswith("${") else word for word in shlex.split(command)]
    words = [part for word in words for part in (given[word[1:]].split() if word.startswith("$") else [word])]
    done = subprocess.run(
        [sys.executable, "-m", "edge_fl", *words, "--connect-timeout", "0.1"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": "/nonexistent"},
    )
    assert done.returncode == 16, done.stderr
    assert "No MQTT broker answers at mqtt://127.0.0.1:1" in done.stderr
