"""``--dp`` and its options: what makes no sense is refused before anything is written."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge_fl.cli.main import app
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError

LOCAL = ["--dp", "local", "--dp-noise", "1"]


@pytest.mark.parametrize("command", ["serve", "simulate"])
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--dp-noise", "1"], "--dp-noise belongs to --dp"),
        (["--dp-quantile", "0.5"], "--dp-quantile belongs to --dp"),
        (["--dp", "local"], "either a noise or the epsilon"),
        ([*LOCAL, "--norm-bound", "2"], "--norm-bound has no part in a run with --dp"),
        ([*LOCAL, "--robust", "median"], "leave --robust out"),
        ([*LOCAL, "--method", "fedbiad"], "in 'fedbiad' devices choose units by their data"),
    ],
)
def test_privacy_that_makes_no_sense(
    tmp_path: Path, digits_bundle: Bundle, command: str, words: list[str], reason: str
) -> None:
    root = tmp_path / "run"
    done = CliRunner().invoke(app, [command, str(digits_bundle.root), "-o", str(root), *words])
    assert isinstance(done.exception, ConfigError)
    assert reason in str(done.exception)
    assert not root.exists()


def test_a_fleet_says_how_many_devices_it_has(tmp_path: Path, digits_bundle: Bundle) -> None:
    private = ["--dp", "central", "--dp-noise", "1"]
    done = CliRunner().invoke(app, ["serve", str(digits_bundle.root), "-o", str(tmp_path / "run"), *private])
    assert "--dp-devices" in str(done.exception)
