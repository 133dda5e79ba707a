"""Robust rules against their definitions, written out entry by entry over whoever holds the entry."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_fl.aggregation import robust_sums
from edge_fl.aggregation.bounds import Clip
from edge_fl.aggregation.robust.base import RobustRule, open_robust, robust_names
from edge_fl.aggregation.robust_sums import RobustAccumulator
from edge_fl.aggregation.rules import Accumulator, find_rule
from edge_fl.aggregation.spool import Spool
from edge_fl.aggregation.sums import CpuSumming
from edge_fl.core.errors import ConfigError, StateError
from edge_fl.core.layout import Mode
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.core.server_half import Change
from edge_fl.measure.models import mlp_layout, random_weights

LAYOUT = mlp_layout(5, 8, 6, 3)
OLD = random_weights(LAYOUT, 1)
Update = tuple[Selection, dict[str, NDArray[np.float32]], int]


def partial_updates(count: int, mode: Mode = "units", hostile: int = 0) -> list[Update]:
    """Updates of patterns that keep two thirds; the ``hostile`` first are a thousand times as large."""
    found = []
    for client in range(count):
        selection = Selection.of(Pattern.seeded(LAYOUT, 333, client), mode)
        values = selection.gather(random_weights(LAYOUT, 10 + client))
        factor = np.float32(1000 if client < hostile else 1)
        found.append((selection, {name: factor * array for name, array in values.items()}, 5 + client))
    return found


def full_updates(count: int, hostile: int = 0) -> list[Update]:
    """Updates that differ from each other by little; the ``hostile`` first point the other way."""
    selection, middle = Selection.of(Pattern.full(LAYOUT), "units"), random_weights(LAYOUT, 2)
    found = []
    for client in range(count):
        sign, noise = np.float32(-10 if client < hostile else 1), random_weights(LAYOUT, 10 + client)
        values = {name: sign * middle[name] + np.float32(0.01) * noise[name] for name in middle}
        found.append((selection, values, 5 + client))
    return found


def aggregated(rule: str, updates: list[Update], *, robust: RobustRule | str, attackers: float = 0.25) -> Change:
    return accumulator(rule, robust, attackers, updates).change(OLD)


def accumulator(rule: str, robust: RobustRule | str, attackers: float, updates: list[Update]) -> RobustAccumulator:
    opened = open_robust(robust, attackers) if isinstance(robust, str) else robust
    sums = RobustAccumulator(LAYOUT, find_rule(rule), opened, spool=Spool(LAYOUT, None), sums=lambda: plain(rule))
    for selection, values, samples in updates:
        sums.add(selection, values, samples)
    return sums


def plain(rule: str, updates: tuple[Update, ...] = ()) -> Accumulator:
    sums = Accumulator(LAYOUT, find_rule(rule), CpuSumming())
    for selection, values, samples in updates:
        sums.add(selection, values, samples)
    return sums


def by_the_definition(
    rule: str, updates: list[Update], centre: Callable[[NDArray[np.float64]], float], needs: int = 5
) -> Change:
    """What the method's rule makes of ``centre`` times what the holders of an entry count, entry by entry."""
    combine, everyone, found = find_rule(rule).combine, sum(samples for _, _, samples in updates), {}
    for tensor in LAYOUT.tensors:
        full = np.full((len(updates), *tensor.shape), np.nan)
        for k, (selection, values, _) in enumerate(updates):
            full[k][selection.index(tensor)] = values[tensor.name]
        result = np.zeros(tensor.shape)
        for i in np.ndindex(*tensor.shape):
            there = [k for k in range(len(updates)) if not np.isnan(full[(k, *i)])]
            held = float(sum(updates[k][2] for k in there))
            total = sum(updates[k][2] * full[(k, *i)] for k in there)
            if len(there) >= needs:
                total = held * centre(np.sort([full[(k, *i)] for k in there]))
            old = OLD[tensor.name][i]
            result[i] = combine(np, old, np.float64(total), np.float64(held), float(everyone))
        found[tensor.name] = result
    return found


def trimmed(share: float) -> Callable[[NDArray[np.float64]], float]:
    def centre(values: NDArray[np.float64]) -> float:
        cut = int(np.ceil(share * len(values)))
        return float(values[cut : len(values) - cut].mean())

    return centre


@pytest.fixture(params=[1 << 22, 40], ids=["whole", "in blocks"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust_sums, "_BLOCK", request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("mode", ["rows", "units"])
@pytest.mark.parametrize("rule", ["mean", "holders", "zeros"])
@pytest.mark.parametrize(
    ("robust", "centre"), [("median", lambda v: float(np.median(v))), ("trimmed_mean", trimmed(0.25))]
)
def test_centres_are_those_of_whoever_holds_an_entry(
    robust: str, centre: Callable[[NDArray[np.float64]], float], rule: str, mode: Mode
) -> None:
    updates = partial_updates(9, mode)
    expected = by_the_definition(rule, updates, centre)
    ours = aggregated(rule, updates, robust=robust)
    for name, array in expected.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("robust", ["median", "trimmed_mean"])
def test_rows_that_too_few_hold_are_averaged_and_counted(robust: str) -> None:
    updates = partial_updates(4)  # all rows of blocks have fewer than 5 holders, and so has the rest
    sums = accumulator("mean", robust, 0.25, updates)
    ours, mean = sums.change(OLD), plain("mean", tuple(updates)).change(OLD)
    for name, array in mean.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-6, atol=1e-7)
    matrices = [tensor.shape[0] if len(tensor.shape) > 1 else 1 for tensor in LAYOUT.tensors]
    assert 0 < sums.averaged <= sum(matrices)
    whole = accumulator("mean", robust, 0.25, full_updates(9))
    whole.change(OLD)
    assert whole.averaged == 0


@pytest.mark.parametrize("rule", ["mean", "holders", "zeros"])
@pytest.mark.parametrize("robust", ["median", "trimmed_mean", "krum", "multi_krum", "geometric_median"])
def test_a_fifth_of_hostile_updates_hardly_moves_what_comes_out(robust: str, rule: str) -> None:
    honest = full_updates(10)
    clean = plain(rule, tuple(honest[2:])).change(OLD)
    ours = aggregated(rule, full_updates(10, hostile=2), robust=robust)
    ruined = plain(rule, tuple(full_updates(10, hostile=2))).change(OLD)
    off, lost = (max(float(np.abs(each[name] - clean[name]).max()) for name in clean) for each in (ours, ruined))
    assert off < 0.06  # the honest differ by 0.01 times a normal draw
    assert lost > 1


@pytest.mark.parametrize(("robust", "kept"), [("multi_krum", [2, 3, 4, 5, 6, 7, 8]), ("krum", None)])
def test_krum_keeps_whoever_lies_close_to_the_others(robust: str, kept: list[int] | None) -> None:
    updates = partial_updates(9, hostile=2)
    ours, rule = aggregated("mean", updates, robust=robust), "mean"
    choices = [kept] if kept else [[k] for k in range(2, 9)]
    matches = [
        all(np.array_equal(ours[n], array) for n, array in change.items())
        for change in (plain(rule, tuple(updates[k] for k in chosen)).change(OLD) for chosen in choices)
    ]
    assert matches.count(True) == 1


def test_krums_distances_are_means_over_shared_entries() -> None:
    updates = partial_updates(7)
    scores = []
    for i, (one, a, _) in enumerate(updates):
        distances = []
        for j, (two, b, _) in enumerate(updates):
            total, shared = 0.0, 0
            for tensor in LAYOUT.tensors:
                first, second = np.full(tensor.shape, np.nan), np.full(tensor.shape, np.nan)
                first[one.index(tensor)], second[two.index(tensor)] = a[tensor.name], b[tensor.name]
                off = (first - second)[~np.isnan(first - second)]
                total, shared = total + float(np.square(off).sum()), shared + off.size
            if i != j:
                distances.append(total / shared)
        scores.append(sum(sorted(distances)[: 7 - 1 - 2]))  # a quarter of 7 is 1
    best = int(np.argmin(scores))
    ours, alone = aggregated("mean", updates, robust="krum"), plain("mean", (updates[best],)).change(OLD)
    assert all(np.array_equal(ours[name], alone[name]) for name in alone)


def test_the_geometric_median_has_the_least_sum_of_distances() -> None:
    updates = full_updates(9, hostile=3)
    ours = aggregated("mean", [(s, v, 1) for s, v, _ in updates], robust="geometric_median")

    def cost(point: Change) -> float:
        every = [np.concatenate([(v[n] - point[n]).ravel() for n in point]) for _, v, _ in updates]
        return sum(float(np.linalg.norm(each)) for each in every)

    least, rng = cost(ours), np.random.default_rng(0)
    for _ in range(50):
        near = {n: a + 0.003 * rng.standard_normal(a.shape) for n, a in ours.items()}
        assert cost(near) > least * (1 - 1e-6)


@pytest.mark.parametrize("robust", ["median", "trimmed_mean", "krum", "multi_krum", "geometric_median"])
def test_updates_that_are_all_alike_come_out_as_they_are(robust: str) -> None:
    selection, values = Selection.of(Pattern.full(LAYOUT), "units"), random_weights(LAYOUT, 3)
    ours = aggregated("mean", [(selection, values, 7)] * 6, robust=robust)
    for name, array in values.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-6)


def test_what_is_clipped_and_stale_counts_less_for_a_robust_rule_too() -> None:
    selection, values = Selection.of(Pattern.full(LAYOUT), "units"), random_weights(LAYOUT, 3)
    sums = accumulator("mean", "median", 0.25, [])
    for _ in range(5):
        sums.add(selection, values, 7, 0.5, clip=Clip(0.5, 1.0))
    for name, array in sums.change(OLD).items():
        np.testing.assert_allclose(array, 0.25 * values[name], rtol=1e-6)


def test_there_is_a_file_a_rule_and_no_rule_withstands_half() -> None:
    assert robust_names() == ["geometric_median", "krum", "median", "multi_krum", "trimmed_mean"]
    with pytest.raises(ConfigError, match="no robust rule 'mode'; there are geometric_median"):
        open_robust("mode", 0.1)
    with pytest.raises(ConfigError, match=r"in \[0, 0.5\), not 0.5"):
        open_robust("median", 0.5)


def test_a_spool_without_room_says_where(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"cannot be written to .*/gone"):
        Spool(LAYOUT, tmp_path / "gone").append(OLD)
