"""What `edge-fl bench secure` finds of a small model."""

from typing import cast

from benchmarks.secure import PATTERNS, bench_secure
from edge_fl.measure.models import mlp_layout


def test_rows_of_every_pattern_with_and_without_those_who_leave() -> None:
    found = bench_secure([15], mlp_layout(12, 10, 8, 3), lambda _: None)
    assert [(row["updates"], row["leave"]) for row in found.rows] == [
        (name, leave) for leave in ("0", "5") for name in PATTERNS
    ]
    for row in found.rows:
        assert cast("float", row["error"]) < 1e-6
        assert 0 <= cast("float", row["left out"]) < 0.5
        assert cast("float", row["up / open"]) > 1
        assert cast("float", row["device (s)"]) > 0
    assert found.rows[0]["left out"] == 0
