"""What the end of a run says."""

from pathlib import Path

import msgspec

from broker.summary import RunSummary
from tests.broker.test_live import METRICS
from tests.broker.test_pacing import config

UPDATES = {f"c{number}": 100 for number in range(4)}


def summary(folder: Path, *clipped: dict[str, float]) -> RunSummary:
    rounds = [msgspec.structs.replace(METRICS, uplink=UPDATES, clipped=each) for each in clipped]
    return RunSummary(config(), 1000, rounds, folder / "weights.safetensors")


def test_updates_that_bounds_changed_are_counted(tmp_path: Path) -> None:
    found = summary(tmp_path, {"c1": 0.6, "c2": 0.0}, {}, {"c3": 0.9})
    (line,) = (line for line in found.lines() if "scaled down" in line)
    assert line.startswith("of 12 updates 2 were scaled down and 1 left out, ")
    assert found.figures()["updates_bounded"] == 3


def test_nothing_is_said_where_bounds_changed_nothing(tmp_path: Path) -> None:
    found = summary(tmp_path, {}, {})
    assert not any("scaled down" in line for line in found.lines())
    assert found.figures()["updates_bounded"] == 0
