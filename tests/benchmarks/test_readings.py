"""FedBIAD's readings side by side, and what is counted of its redraws."""

from collections.abc import Callable

import pytest

from benchmarks.grid import Choice, Filling, entry
from benchmarks.readings import READINGS, bench_readings, redraws_of
from edge_fl.core.errors import ConfigError

Tiny = Callable[..., Choice]
Make = Callable[..., Filling]


@pytest.mark.matrix
def test_every_reading_has_a_row_and_those_with_a_first_stage_their_redraws(tiny: Tiny, filling: Make) -> None:
    result = bench_readings(tiny(local_steps=30), filling())

    assert [row["reading"] for row in result.rows] == ["FedAvg", *READINGS]
    redrawn = {row["reading"]: row["redraws"] for row in result.rows}
    assert redrawn["FedAvg"] == redrawn["no first stage"] == ""
    assert float(redrawn["steps"]) > float(redrawn["steps, own losses"]) > 0
    judged = {row["reading"]: row["misjudged (%)"] for row in result.rows}
    assert judged["steps, own losses"] == judged["passes, own losses"] == 0
    assert float(judged["steps"]) > 0


def test_redraws_are_those_of_every_client_and_round_and_end_with_what_was_trained(
    tiny: Tiny, filling: Make
) -> None:
    """With as many steps as two looks, there is at most one redraw, after which one step is left."""
    choice = tiny(local_steps=8, clients=40, lr=1e-6)  # losses that only the batch moves
    (run,) = entry(choice, "digits", "fedbiad stage_boundary=5 tau_in=steps", {}).runs
    counted = redraws_of(run, filling())
    assert counted.visits == 2 * run.clients_per_round
    assert 0 < counted.redraws < counted.visits
    assert sorted(set(counted.last)) == [1, 8]
    assert counted.last.count(1) == counted.redraws
    assert counted.misjudged == 0


def test_a_method_is_refused(tiny: Tiny, filling: Make) -> None:
    with pytest.raises(ConfigError, match="Readings are of fedbiad alone"):
        bench_readings(tiny("feddrop"), filling())
