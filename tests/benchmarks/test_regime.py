"""Settings that FedBIAD's paper leaves open: one row each, beside FedAvg's of the same setting."""

from collections.abc import Callable

import pytest

from benchmarks.grid import Choice, Filling
from benchmarks.regime import Settings, bench_regime
from edge_fl.core.errors import DataError

Tiny = Callable[..., Choice]
Make = Callable[..., Filling]


@pytest.mark.matrix
def test_each_setting_has_a_row_a_method_beside_fedavg_of_the_same_setting(tiny: Tiny, filling: Make) -> None:
    choice = tiny("fedavg", "fedbiad mode=units", seeds=(0, 1), rounds=8)
    result = bench_regime(choice, filling(), Settings(("labels=2", "iid"), (4,), (0.05,), (20,)))

    assert [(row["method"], row["partition"]) for row in result.rows] == [
        ("fedavg", "labels=2"),
        ("fedbiad mode=units", "labels=2"),
        ("fedavg", "iid"),
        ("fedbiad mode=units", "iid"),
    ]
    two, fedbiad, iid, _ = result.rows
    assert two["- FedAvg's"] == iid["- FedAvg's"] == 0
    accuracies = [float(str(row["accuracy (%)"]).split()[0]) for row in (two, fedbiad, iid)]
    assert accuracies[0] < accuracies[2]  # fewer labels a client, less accuracy
    assert float(fedbiad["- FedAvg's"]) == pytest.approx(accuracies[1] - accuracies[0], abs=0.02)
    assert all(float(row["swing"]) > 0 for row in result.rows)
    assert result.command.endswith("--partition labels=2 --partition iid --local-steps 4 --lr 0.05 --batch 20")


def test_a_partition_that_is_none_is_refused(tiny: Tiny, filling: Make) -> None:
    with pytest.raises(DataError, match="labels=0"):
        bench_regime(tiny(), filling(), Settings(("labels=0",)))
