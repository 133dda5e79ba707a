"""Whole rounds of secure aggregation between real participants and the real aggregator, in this process."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from broker.model import GlobalModel
from broker.secure_aggregation.round_total import SecureTotal, SimulatedTotal
from edge_fl.aggregation.spool import Spool
from edge_fl.core.errors import RunError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.measure.models import mlp_layout, random_weights
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import SecureAggregation
from edge_fl.wire.frame import decode_frame
from edge_fl.wire.messages import MakeKeys, SendMasked, ShareKeys, Unmask
from tests.secure_aggregation.crowd import Crowd, aggregator_of, announced, plain, plan, summed, update

LAYOUT = mlp_layout(12, 16, 10, 4)


def fedbiad(layout: Layout, count: int) -> Crowd:
    """Each device holds rows of its own choice."""
    return Crowd(
        layout,
        {
            f"d{i:03}": update(layout, f"d{i:03}", Pattern.seeded(layout, 500, i), "rows", samples=20 + i)
            for i in range(count)
        },
    )


def fjord(layout: Layout, count: int) -> Crowd:
    """Each device holds the first units of its tier's width."""
    widths = (1000, 600, 200)
    return Crowd(
        layout,
        {
            f"d{i:03}": update(
                layout,
                f"d{i:03}",
                Pattern.prefix(layout, widths[i % 3]),
                "units",
                samples=20 + i,
                tier=i % 3,
            )
            for i in range(count)
        },
    )


CROWDS = {"fedbiad": (fedbiad, "rows"), "fjord": (fjord, "units")}


def bound(total: SecureTotal) -> float:
    """How far a mean may be off: n rounding errors of half a step, and holders that weigh least."""
    return max(
        len(one.survivors) * 2.0 ** -(one.cohort.exponent(tensor) + 1)
        for one in total.sums.sums
        for tensor in LAYOUT.tensors
    )


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        *(("fedbiad", "mean"), ("fedbiad", "zeros"), ("fjord", "holders")),
        *(pytest.param(*each, marks=pytest.mark.matrix) for each in (("fedbiad", "holders"), ("fjord", "mean"))),
        pytest.param("fjord", "zeros", marks=pytest.mark.matrix),
    ],
)
def test_equals_plain_aggregation(method: str, rule: str, tmp_path: Path) -> None:
    make, mode = CROWDS[method]
    crowd, weights = make(LAYOUT, 30), random_weights(LAYOUT, 1)
    how = plan(LAYOUT, mode, rule, SecureAggregation())
    total, current = summed(crowd, how, tmp_path)
    expected, found = plain(total, crowd, how, weights), total.sums.change(weights)
    assert sorted(current.reports) == sorted(crowd.updates)
    for tensor in LAYOUT.tensors:
        np.testing.assert_allclose(found[tensor.name], expected[tensor.name], rtol=0, atol=30 * bound(total))
    assert [report.client for report in total.close()] == sorted(crowd.updates)


@pytest.mark.parametrize("kind", [MakeKeys, ShareKeys, SendMasked, Unmask])
@pytest.mark.parametrize("method", CROWDS)
def test_a_third_leaves(kind: type, method: str, tmp_path: Path) -> None:
    make, mode = CROWDS[method]
    crowd, weights = make(LAYOUT, 30), random_weights(LAYOUT, 1)
    gone = sorted(crowd.updates)[1::3]
    order = [MakeKeys, ShareKeys, SendMasked, Unmask]

    def leaves(asked: type, attempt: int) -> Collection[str]:
        return gone if attempt > 1 or order.index(asked) >= order.index(kind) else ()

    crowd.leaves = leaves
    how = plan(LAYOUT, mode, "mean", SecureAggregation(holders=2, threshold=0.6))
    total, current = summed(crowd, how, tmp_path)
    expected, found = plain(total, crowd, how, weights), total.sums.change(weights)
    for tensor in LAYOUT.tensors:
        np.testing.assert_allclose(found[tensor.name], expected[tensor.name], rtol=0, atol=30 * bound(total))
    there = sorted(crowd.updates) if kind is Unmask else sorted(set(crowd.updates) - set(gone))
    assert sorted(current.reports) == there
    assert all(current.parts[client].excused for client in crowd.updates if client not in there)


def test_simulation_has_the_very_numbers(tmp_path: Path) -> None:
    for method, (make, mode) in CROWDS.items():
        crowd, weights = make(LAYOUT, 24), random_weights(LAYOUT, 1)
        how = plan(LAYOUT, mode, "holders", SecureAggregation(cohort=12, holders=6))
        (tmp_path / method).mkdir()
        total, _ = summed(crowd, how, tmp_path / method)
        simulated = SimulatedTotal(how, Spool(LAYOUT, None))
        for _, one in sorted(crowd.updates.items()):
            frame = decode_frame(one.frame, LAYOUT)
            simulated.add(one.tier, type(frame)(frame.header, frame.pattern, frame.selection, one.kept))
        reports = simulated.close()
        assert {r.client: (r.samples, r.loss) for r in reports} == {
            r.client: (r.samples, r.loss) for r in total.close()
        }
        found, expected = simulated.sums.change(weights), total.sums.change(weights)
        for name, change in expected.items():
            assert found[name].tobytes() == change.tobytes(), name
        assert simulated.left_out == total.left_out > 0


@pytest.mark.matrix
@pytest.mark.parametrize("method", ["fedbiad", "fjord"])
def test_three_hundred_in_three_cohorts(method: str, tmp_path: Path) -> None:
    make, mode = CROWDS[method]
    layout = mlp_layout(6, 10, 6, 3)
    crowd, weights = make(layout, 300), random_weights(layout, 1)
    gone = set(sorted(crowd.updates)[::3])
    crowd.leaves = lambda asked, _attempt: gone if asked in (SendMasked, Unmask) else ()
    how = plan(layout, mode, "mean", SecureAggregation(threshold=0.6))
    total, current = summed(crowd, how, tmp_path)
    assert [len(one.cohort.members) for one in total.sums.sums] == [100, 100, 100]
    assert sorted(current.reports) == sorted(crowd.updates.keys() - gone)
    expected, found = plain(total, crowd, how, weights), total.sums.change(weights)
    for tensor in layout.tensors:
        np.testing.assert_allclose(found[tensor.name], expected[tensor.name], rtol=0, atol=1e-6)


def test_rows_that_become_thin_are_left_out_in_a_new_attempt(tmp_path: Path) -> None:
    """Six hold a row, five must, and two leave after they shared: nobody unmasks that sum."""
    full, narrow = Pattern.prefix(LAYOUT, 1000), Pattern.prefix(LAYOUT, 500)
    crowd = Crowd(
        LAYOUT,
        {
            f"d{i:03}": update(
                LAYOUT, f"d{i:03}", full if i < 6 else narrow, "units", samples=10, tier=int(i >= 6)
            )
            for i in range(20)
        },
    )
    crowd.leaves = lambda asked, attempt: ["d000", "d001"] if attempt > 1 or asked is SendMasked else ()
    weights = random_weights(LAYOUT, 1)
    how = plan(LAYOUT, "units", "mean", SecureAggregation())
    total, current = summed(crowd, how, tmp_path)
    (one,) = total.sums.sums
    assert one.cohort.roster.attempt == 2
    assert not any(kind is Unmask for client, kind in crowd.asked if client in ("d000", "d001"))
    assert sum(kind is Unmask for _, kind in crowd.asked) == 18  # once each: attempt 1 was not unmasked
    found, expected = total.sums.change(weights), plain(total, crowd, how, weights)
    for tensor in LAYOUT.tensors:
        np.testing.assert_allclose(found[tensor.name], expected[tensor.name], rtol=0, atol=1e-6)
    wide = LAYOUT.tensors[0]
    assert not found[wide.name][8:].any()
    assert found[wide.name][:8].any()
    assert 0 < total.left_out < 0.5
    assert len(current.reports) == 18


def test_too_few_are_left(tmp_path: Path) -> None:
    """The round is lost, and not the run; three in a row end it."""
    crowd = fedbiad(LAYOUT, 12)
    crowd.leaves = lambda _asked, _attempt: sorted(crowd.updates)[4:]
    how = plan(LAYOUT, "rows", "mean", SecureAggregation())
    aggregator = aggregator_of(crowd, how, tmp_path)
    weights = random_weights(LAYOUT, 1)
    model = GlobalModel(LAYOUT, dict(weights), recipe=open_recipe("fedavg", {}), run="run")
    for _ in range(2):
        current = announced(crowd, tmp_path, quorum=6)
        applied = model.apply(aggregator.total(current, {}))
        assert applied.loss is None
        assert not current.reports
        assert len(current.excused) == 12
        assert all(model.weights[name].tobytes() == held.tobytes() for name, held in weights.items())
    assert model.version == 2
    with pytest.raises(RunError, match="kept 0 of the 6 updates that it needs, as in the 2 rounds before"):
        aggregator.total(announced(crowd, tmp_path, quorum=6), {})


def test_a_coordinator_that_comes_back_asks_for_the_same_sum(tmp_path: Path) -> None:
    """It was killed after the first answers: devices that answered would refuse any other sum."""
    crowd, weights = fedbiad(LAYOUT, 20), random_weights(LAYOUT, 1)
    how = plan(LAYOUT, "rows", "mean", SecureAggregation())
    gone = sorted(crowd.updates)[:3]

    class KilledError(Exception):
        pass

    answered = []

    def leaves(asked: type, _attempt: int) -> Collection[str]:
        if asked is Unmask:
            answered.append(asked)
            if len(answered) > 5:
                raise KilledError
        return gone if asked is SendMasked else ()

    crowd.leaves = leaves
    with pytest.raises(KilledError):
        summed(crowd, how, tmp_path)
    crowd.leaves, crowd.asked = (lambda _asked, _attempt: ()), []
    total, current = summed(crowd, how, tmp_path)
    assert {kind for _, kind in crowd.asked} == {Unmask}
    assert sorted(current.reports) == sorted(crowd.updates.keys() - set(gone))
    found, expected = total.sums.change(weights), plain(total, crowd, how, weights)
    for tensor in LAYOUT.tensors:
        np.testing.assert_allclose(found[tensor.name], expected[tensor.name], rtol=0, atol=1e-6)


def test_a_cohort_that_too_many_leave_as_they_share_begins_anew(tmp_path: Path) -> None:
    crowd = fedbiad(LAYOUT, 20)
    gone = sorted(crowd.updates)[:8]
    crowd.leaves = lambda asked, attempt: gone if asked is ShareKeys or attempt > 1 else ()
    total, current = summed(crowd, plan(LAYOUT, "rows", "mean", SecureAggregation(holders=2)), tmp_path)
    assert sorted(current.reports) == sorted(crowd.updates.keys() - set(gone))
    assert [one.cohort.roster.attempt for one in total.sums.sums] == [2]


def test_an_update_that_was_lost_with_the_power_costs_the_round(tmp_path: Path) -> None:
    """Its values are in the sum that was noted to be unmasked, and what it announced is gone."""
    crowd = fedbiad(LAYOUT, 12)
    how = plan(LAYOUT, "rows", "mean", SecureAggregation(holders=2))
    summed(crowd, how, tmp_path)
    current = announced(crowd, tmp_path, quorum=1)
    current.lose("d003", "its update was lost with this machine's power")
    assert not aggregator_of(crowd, how, tmp_path).total(current, {}).close()
    assert not current.reports


def test_one_vector_says_nothing_without_the_shares_of_others(tmp_path: Path) -> None:
    """Bytes of a masked update are uniform, and so is the difference of two: chi squared over 256 values."""
    layout = mlp_layout(60, 100, 60, 10)
    crowd = fedbiad(layout, 8)
    summed(crowd, plan(layout, "rows", "mean", SecureAggregation(holders=2)), tmp_path)
    first, second = (np.frombuffer(crowd.vectors[client], dtype="<u4") for client in ("d000", "d001"))
    length = min(len(first), len(second))
    for vector in (first, second, first[:length] - second[:length]):
        counts = np.bincount(vector.view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        chi_squared = float(((counts - expected) ** 2 / expected).sum())
        assert 255 - 6 * np.sqrt(510) < chi_squared < 255 + 6 * np.sqrt(510)
    unmasked = np.frombuffer(crowd.updates["d000"].values, dtype=np.uint8)
    counts = np.bincount(unmasked, minlength=256)
    assert float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) > 1000  # the test can fail
