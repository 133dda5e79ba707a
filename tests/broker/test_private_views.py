"""What people and scripts see of a private run: epsilon, and no training loss."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from broker.live import view
from broker.log_view import LogView
from broker.summary import RunSummary
from device_sim.simulation.progress import view as progress
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.runs.plot import draw_run
from edge_fl.runs.privacy import Privacy, Spent
from tests.broker.test_live import METRICS, watch
from tests.broker.test_pacing import config

PRIVATE = msgspec.structs.replace(METRICS, train_loss=None, privacy=Spent(2.345, 0.5))
UNSCORED = msgspec.structs.replace(PRIVATE, loss=None, scores={}, uplink={})
PRIVACY = Privacy("central", noise=1.25, delta=1e-4, devices=10)


def summary(folder: Path, *rounds: RoundMetrics) -> RunSummary:
    return RunSummary(config(privacy=PRIVACY), 1000, rounds, folder / "weights.safetensors")


@pytest.mark.parametrize("terminal", [True, False])
def test_the_live_views_tell_epsilon(terminal: bool) -> None:
    text = io.StringIO()
    with view(Console(file=text, force_terminal=terminal, width=160, color_system=None), live=True) as observer:
        watch(observer)
        observer.round_closed(PRIVATE)
    assert "epsilon 2.35" in text.getvalue()
    assert "None" not in text.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_simulation_without_any_score_tells_epsilon_or_nothing(terminal: bool) -> None:
    text = io.StringIO()
    with progress(Console(file=text, force_terminal=terminal, width=160)) as observer:
        observer.started(config(privacy=PRIVACY), 1000)
        observer.round_closed(UNSCORED)
    assert "None" not in text.getvalue()
    assert ", ," not in text.getvalue()


def test_log_lines_tell_epsilon(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "broker.log_view")
    LogView().round_closed(UNSCORED)
    assert caplog.records[0].getMessage() == "round 1: epsilon 2.35, 0 updates"


def test_the_summary_tells_epsilon_and_its_picture_needs_no_loss(tmp_path: Path) -> None:
    found = summary(tmp_path, PRIVATE, UNSCORED)
    assert "central differential privacy: epsilon 2.35 at delta 0.0001, noise 1.25" in found.lines()
    assert found.figures()["privacy"] == {"kind": "central", "epsilon": 2.345, "delta": 1e-4}
    assert found.found == "not scored"
    draw_run(found.rounds, tmp_path / "plot.png", title="private", dense=found.dense)
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    nobody = summary(tmp_path, UNSCORED)
    assert nobody.figures()["uplink_bytes"] == 0  # every round may have drawn nobody
    draw_run(nobody.rounds, tmp_path / "plot.png", title="private", dense=None)


def test_a_clip_without_noise_is_not_called_private(tmp_path: Path) -> None:
    clipped = msgspec.structs.replace(PRIVATE, privacy=Spent(None, 0.5))
    assert "updates were clipped and had no noise: no privacy is promised" in summary(tmp_path, clipped).lines()
    assert clipped.privacy is not None
    assert clipped.privacy.text == "no noise"
