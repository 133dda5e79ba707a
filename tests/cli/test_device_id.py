"""What a device is called unless its owner says so."""

import json
import platform
from pathlib import Path

import pytest

from edge_fl.commands.device_options import client_of
from edge_fl.core.errors import ConfigError


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "pi.kitchen.example.org")


@pytest.mark.parametrize(
    ("data", "start"),
    [
        ("csv:/home/eve/diary/tea.csv?label=taste&classes=/home/eve/tastes.txt", "pi.kitchen.example.org-tea-"),
        ("csv:tea.csv?label=taste", "pi.kitchen.example.org-csv-tea-"),
        ("python:/home/eve/own.py:load", "pi.kitchen.example.org-own-"),
        ("fashion-mnist:0/10:owners", "pi.kitchen.example.org-fashion-mnist-0-10-owners-"),
        ("csv:/data/" + "x" * 300 + ".csv", "pi.kitchen.example.org-" + "x" * 28 + "-"),
        ("csv:/data/été 1.csv", "pi.kitchen.example.org-t-1-"),
        ("images:/", "pi.kitchen.example.org-images-"),
    ],
)
def test_a_new_id_names_host_and_data_without_folders_and_options(data: str, start: str) -> None:
    found = client_of(None, data, None)
    assert found.startswith(start)
    assert len(found) == len(start) + 6
    assert found == client_of(None, data, None)


def test_equal_files_of_two_folders_have_two_ids() -> None:
    assert client_of(None, "csv:/a/x.csv", None) != client_of(None, "csv:/b/x.csv", None)


def test_a_state_folder_keeps_its_id_whatever_the_data_is_now(tmp_path: Path) -> None:
    assert client_of(None, "digits", tmp_path) == client_of(None, "digits", None)
    (tmp_path / "identity.json").write_text(json.dumps({"client": "tea"}))
    assert client_of(None, "csv:other.csv?ignore=x", tmp_path) == "tea"
    assert client_of("coffee", "digits", tmp_path) == "coffee"  # which the folder refuses, as it is not its own
    (tmp_path / "identity.json").write_text("{")
    assert client_of(None, "digits", tmp_path) == client_of(None, "digits", None)


def test_an_empty_id_is_none() -> None:
    with pytest.raises(ConfigError, match="An id has 1 to 64"):
        client_of("", "digits", None)
