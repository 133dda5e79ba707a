"""The page of accuracy against epsilon."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.grid import Choice, Filling
from benchmarks.privacy import bench_privacy


@pytest.mark.matrix
def test_the_page_holds_every_epsilon_against_the_same_run_without_privacy(
    tiny: Callable[..., Choice], filling: Callable[..., Filling], tmp_path: Path
) -> None:
    result = bench_privacy(tiny("fedavg", "feddrop"), filling(), [20.0, 5.0], delta=1e-3)
    rows = json.loads(result.json())["rows"]
    assert [(row["method"], row["epsilon"]) for row in rows] == [
        (method, epsilon) for method in ("fedavg", "feddrop") for epsilon in ("none", "clip alone", "5", "20")
    ]
    assert [row["noise (clips)"] for row in rows[:2]] == ["", ""]
    assert rows[2]["noise (clips)"] > rows[3]["noise (clips)"] > 0
    assert rows[0]["lost (points)"] == 0
    assert "--epsilon 20 --epsilon 5 --delta 0.001 --clip 0.5" in result.command
    (picture,) = result.pictures
    picture.draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_a_picture_of_one_epsilon_has_labelled_axes(
    tiny: Callable[..., Choice], filling: Callable[..., Filling], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import pyplot as plt

    labels = []
    monkeypatch.setattr(
        plt, "close", lambda figure: labels.append([(a.get_xlabel(), a.get_ylabel()) for a in figure.axes])
    )
    (picture,) = bench_privacy(tiny("fedavg"), filling(), [5.0], delta=1e-3).pictures
    picture.draw(tmp_path / "picture.png")
    assert labels[-1:] == [[("epsilon (at delta 0.001)", "held-out accuracy (%)")]]
