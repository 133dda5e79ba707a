"""Clocks that are years off when certificates are checked: a sentence says so, and nothing else comes of it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.security.conftest import SecuredFleet


def device(secured: SecuredFleet, tmp_path: Path, *clock: str) -> subprocess.CompletedProcess[str]:
    """What comes of a device's doctor, which connects as the device does."""
    own = ["--identity", str(secured.identity("tea")), "--broker", str(secured.address)]
    command = [*clock, sys.executable, "-m", "edge_fl", "device", "doctor", "--data", "digits:0/2", *own]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("offset", ["+2y", "-2y"])
def test_a_device_whose_clock_is_years_off_says_so(secured: SecuredFleet, tmp_path: Path, offset: str) -> None:
    faketime = shutil.which("faketime")
    if faketime is None:
        pytest.skip("faketime is not installed (Debian: apt-get install faketime)")
    wrong = device(secured, tmp_path, "env", "FAKETIME_DONT_FAKE_MONOTONIC=1", faketime, "-f", offset)
    assert "does not hold now" in wrong.stdout + wrong.stderr
    assert "clock" in wrong.stdout + wrong.stderr
    right = device(secured, tmp_path)
    assert "does not hold now" not in right.stdout + right.stderr
