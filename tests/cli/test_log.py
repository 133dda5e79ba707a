"""The log of commands that run for long: its form, its size, and what becomes of it on a full disk."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_fl.commands import log as log_module
from edge_fl.commands.log import LogFormat, logging_to
from edge_fl.core.errors import BrokerError, StateError
from edge_fl.core.log import log_fields

LOG = logging.getLogger("edge_fl.test")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:], root.level, logging.raiseExceptions = handlers, level, raises


def test_json_lines_know_client_and_round(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "agent.log"

    def refused() -> None:
        with logging_to(file, LogFormat.JSON, client="client-1"):
            LOG.info("two\nlines of %s", "text")
            with log_fields(run="run-1", round=3):
                LOG.warning("in a round")
            raise BrokerError("No broker.")

    with pytest.raises(BrokerError):
        refused()
    first, second, third = (json.loads(line) for line in file.read_text().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first.pop("time"))
    assert first == {
        "level": "info",
        "logger": "edge_fl.test",
        "message": "two\nlines of text",
        "client": "client-1",
    }
    assert (second["run"], second["round"], second["level"]) == ("run-1", 3, "warning")
    assert "round" not in third
    assert (third["level"], third["message"]) == ("error", "No broker.")


def test_a_log_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_FILE_BYTES", 2000)
    with logging_to(tmp_path / "agent.log", LogFormat.TEXT):
        for number in range(1000):
            LOG.info("line %d", number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["agent.log", "agent.log.1", "agent.log.2", "agent.log.3"]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
    assert (tmp_path / "agent.log").read_text().endswith("INFO line 999\n")


def test_a_log_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StateError, match=r"The log .* cannot be written: "),
        logging_to(tmp_path / "file" / "agent.log", LogFormat.TEXT),
    ):
        pass


def agent_without_broker(folder: Path, log: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge_fl", "device", "--broker", "mqtt://127.0.0.1:1", "--data", "digits"]
    options = ("--id", "client-1", "--state", "state", "--connect-timeout", "0.1")
    logged = ("--log-file", log, "--log-format", "json")
    return subprocess.run([*command, *options, *logged], cwd=folder, capture_output=True, text=True, check=False)


def test_an_agent_that_ends_says_why_in_its_log(tmp_path: Path) -> None:
    done = agent_without_broker(tmp_path, "agent.log")
    assert done.returncode == 16
    line = json.loads((tmp_path / "agent.log").read_text().splitlines()[-1])
    assert (line["level"], line["client"]) == ("error", "client-1")
    assert done.stderr == f"edge-fl: {line['message']}\n"


def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    done = agent_without_broker(tmp_path, "/dev/full")
    assert done.returncode == 16
    assert done.stderr.startswith("edge-fl: No MQTT broker answers")
    assert done.stderr.count("\n") == 1
