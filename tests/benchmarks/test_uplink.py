"""The plane of accuracy and uplink."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.grid import Choice, Filling
from benchmarks.uplink import bench_uplink, verdict
from edge_fl.core.errors import ConfigError


def test_a_preset_is_beside_dense_updates_with_its_warm_up_counted(
    tiny: Callable[..., Choice], filling: Callable[..., Filling], tmp_path: Path
) -> None:
    warmup, preset = 5, "best-uplink tcs.warmup=5"

    result = bench_uplink(tiny(preset, rounds=warmup + 5), filling())

    dense, alike, ours = result.rows
    assert [row["method"] for row in result.rows] == ["fedavg", "fedavg server.momentum=0.5", preset]
    for row in (dense, alike):
        assert row["dense / steady"] == row["dense / all"] == 1
        assert (row["- FedAvg's"], row["after the warm-up (%)"]) == (0, "")
    assert dense["accuracy (%)"] != alike["accuracy (%)"]
    apart = float(str(ours["accuracy (%)"])) - float(str(alike["accuracy (%)"]))
    assert ours["- FedAvg's"] == pytest.approx(apart, abs=0.011)
    assert 0 < float(str(ours["after the warm-up (%)"])) < 100
    steady, total = float(ours["dense / steady"]), float(ours["dense / all"])
    assert steady > 15, "of so small a model the frame's header is the larger part"
    assert 1 < total < (warmup + 5) / warmup * 4, "a round of the warm-up sends every kept entry: a quarter"
    result.write(tmp_path / "uplink.md")
    assert (tmp_path / "uplink-digits.png").read_bytes().startswith(b"\x89PNG")


def test_runs_that_fail_are_told_and_differences_are_over_seeds_that_both_have(
    tiny: Callable[..., Choice], filling: Callable[..., Filling]
) -> None:
    (failed,) = bench_uplink(tiny("fedavg", lr=1e30), filling("failed")).rows
    assert (failed["accuracy (%)"], failed["- FedAvg's"], failed["dense / all"]) == ("failed", "", "")

    how = filling(report=str)
    bench_uplink(tiny("fedavg", seeds=(0, 1)), how)
    bench_uplink(tiny("feddrop", seeds=(1,)), how)
    both = bench_uplink(tiny("feddrop", seeds=(0, 1)), filling(minutes=0.0))
    alone = bench_uplink(tiny("feddrop", seeds=(1,)), filling(minutes=0.0))
    assert both.rows[1]["seeds"] == 1
    assert both.rows[1]["- FedAvg's"] == alone.rows[1]["- FedAvg's"]


@pytest.mark.parametrize(("method", "warmup"), [("best-uplink tcs.warmup=25", 25), ("fedavg+dgc", 4)])
def test_a_round_of_a_warm_up_is_not_taken_for_a_steady_one(
    tiny: Callable[..., Choice], filling: Callable[..., Filling], method: str, warmup: int
) -> None:
    few = f"tenth of {warmup} rounds is not past the warm-up of '{re.escape(method)}', which takes {warmup}: raise"
    with pytest.raises(ConfigError, match=few):
        bench_uplink(tiny(method, rounds=warmup), filling())


@pytest.mark.parametrize(
    ("difference", "ratio", "dense", "says"),
    [
        (-0.1, 120, [84.0, 84.4], "reached"),
        (-0.5, 120, [84.0, 84.4], "missed by accuracy"),
        (2.0, 99, [84.0, 84.4], ""),
        (2.0, 120, [84.0], ""),
    ],
)
def test_the_goal_takes_few_bytes_and_the_accuracy_of_dense_updates(
    difference: float, ratio: float, dense: list[float], says: str
) -> None:
    assert verdict(difference, ratio, dense) == says
