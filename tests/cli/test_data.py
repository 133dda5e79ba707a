"""`edge-fl data show` in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path


def show(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge_fl", "data", "show", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_partition_is_shown_in_words_and_in_a_picture(tmp_path: Path) -> None:
    done = show("digits", "--partition", "labels=2", "--clients", "20", "--plot", str(tmp_path / "p.png"))
    assert done.returncode == 0, done.stderr
    assert "1437 training and 360 test samples of shape (1, 8, 8) in float32" in done.stdout
    assert "  labels  2  2  2" in done.stdout
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_json_has_every_client() -> None:
    done = show("digits", "--partition", "shards=1", "--clients", "10", "--json")
    clients = json.loads(done.stdout)["clients"]
    assert sum(clients["samples"]) == 1437
    assert len(clients["labels"]) == 10
    assert clients["owners"] is None


def test_what_cannot_be_done_is_one_sentence(tmp_path: Path) -> None:
    done = show("digits", "--partition", "owners")
    assert (done.returncode, done.stderr.count("\n")) == (14, 1)
    done = show("digits", "--plot", str(tmp_path / "no" / "p.png"))
    assert (done.returncode, done.stderr.count("\n")) == (15, 1)
    assert "cannot be written" in done.stderr
