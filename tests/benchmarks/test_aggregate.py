import json

import pytest

from broker.measure.aggregate import bench_aggregate
from edge_fl.core.errors import ModelError
from exporter.measure.cases import find_case


def test_every_kind_of_update_is_timed_beside_a_copy() -> None:
    told: list[str] = []

    result = bench_aggregate({"digits-mlp": (find_case("digits-mlp").layout(), 3)}, repeats=2, report=told.append)

    rows = json.loads(result.json())["rows"]
    assert told == ["digits-mlp, fedavg", "digits-mlp, fedbiad", "digits-mlp, feddrop"]
    assert [(row["mode"], row["rule"]) for row in rows] == [
        ("rows", "mean"),
        ("rows", "holders"),
        ("units", "holders"),
    ]
    assert [row["updates"] for row in rows] == [3, 3, 3]
    dense, whole_rows, units = (row["MB"] for row in rows)
    assert units < whole_rows < 0.6 * dense
    assert all(row["copy (ms)"] > 0 and row["aggregate / copy"] > 0 and row["decode / copy"] > 0 for row in rows)
    assert [row["goals"].split(":")[0] for row in rows] == ["", *2 * ["aggregate / copy ≤ 3"]]


def test_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="no model 'gpt'"):
        find_case("gpt")
