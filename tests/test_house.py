"""The linter guards packages, not lists of files: what is added anywhere below is held to the same rules."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("edge_fl", "exporter", "broker", "device_sim", "benchmarks")


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("edge_fl/core/share.py", "import torch", "edge_fl is light"),
        ("edge_fl/metrics/text.py", "import torch", "edge_fl is light"),
        ("edge_fl/wire/bits.py", "import edge_fl.compressors.base", "Rooms of edge_fl"),
        ("edge_fl/data/idx.py", "import edge_fl.runtimes.base", "Rooms of edge_fl"),
        ("broker/tables.py", "import exporter.target", "Packages"),
    ],
)
def test_an_arrow_that_runs_up_fails_the_lint(tmp_path: Path, module: str, line: str, contract: str) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / module
    file.write_text(f"{file.read_text()}\n\n{line}\n")
    lint = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(lint, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    broken = [words for words in done.stdout.splitlines() if "BROKEN" in words or "KEPT" in words]
    assert "Contracts: 2 kept, 1 broken." in done.stdout
    assert any(
        contract.split(maxsplit=1)[0] in words for words in done.stdout.split("Broken contracts")[1].splitlines()
    ), broken


def test_a_coordinator_needs_no_cryptography_before_an_identity_does() -> None:
    """It comes with an extra of its own."""
    code = "import sys, broker.session, broker.commands.serve; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
