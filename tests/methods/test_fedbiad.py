"""FedBIAD against Algorithm 1 written out plainly."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.pattern import Pattern
from edge_fl.measure.models import mlp_layout
from edge_fl.methods.base import Job, LocalHalf, open_method

LAYOUT = mlp_layout(6, 9, 7, 3)


def start(
    parameters: dict[str, object], *, round: int = 1, state: dict[str, np.ndarray] | None = None
) -> LocalHalf:
    method = open_method("fedbiad", {"dropout": [500], "stage_boundary": 5, **parameters})
    return method.local(Job(layout=LAYOUT, client="a", round=round, seed=3, weights={}, state=state or {}))


def algorithm_1(losses: list[float], patterns: list[np.ndarray], *, tau: int) -> tuple[list[int], np.ndarray]:
    """Lines 15 to 27: at which steps to redraw, and the scores, given the patterns that draws produce in order."""
    redraws, drawn = [], 0
    scores = np.zeros(LAYOUT.units)
    beta = patterns[0]
    for v, _ in enumerate(losses):
        gap = None
        if v > tau and v % tau == 0:
            mean_now = sum(losses[i] for i in range(v - tau + 1, v + 1)) / tau
            mean_before = sum(losses[i] for i in range(v - 2 * tau + 1, v - tau + 1)) / tau
            gap = mean_now - mean_before
        after = beta
        if gap is not None and gap > 0:
            drawn += 1
            after = patterns[drawn]
            redraws.append(v)
        for j in range(LAYOUT.units):
            if beta[j]:
                scores[j] += 1 if gap is None or gap <= 0 else int(after[j])
        beta = after
    return redraws, scores


@given(st.lists(st.floats(0, 10, width=16), min_size=1, max_size=40), st.integers(1, 4))
def test_stage_one_redraws_and_scores_as_algorithm_1(losses: list[float], tau: int) -> None:
    local = start({"tau": tau})
    patterns, redraws = [local.step.pattern.mask], []
    for step, loss in enumerate(losses):
        before = local.step.pattern
        local.after_step(step, loss)
        if local.step.pattern is not before:
            patterns.append(local.step.pattern.mask)
            redraws.append(step)
    # one more draw than happened, so that the reference could disagree
    expected_redraws, expected_scores = algorithm_1(losses, [*patterns, patterns[-1]], tau=tau)
    assert redraws == expected_redraws
    np.testing.assert_array_equal(local.state()["scores"], expected_scores)


def test_a_tau_in_passes_is_as_many_steps_as_they_take() -> None:
    """Three passes over 45 samples in batches of 20 are nine steps: a look at steps 18 and 27, and not at 9."""
    method = open_method("fedbiad", {"tau": 3, "tau_in": "passes"})
    local = method.local(Job(LAYOUT, "a", 1, 3, {}, {}, samples=45, batch=20))
    redraws = []
    for step in range(30):
        before = local.step.pattern
        local.after_step(step, float(step))  # a rising loss redraws at every look
        redraws += [step] if local.step.pattern is not before else []
    assert redraws == [18, 27]


@given(st.lists(st.floats(0, 10, width=16), min_size=1, max_size=60), st.integers(1, 4))
def test_with_own_losses_no_pattern_is_judged_by_those_of_another(losses: list[float], tau: int) -> None:
    local = start({"tau": tau, "own_losses": True})
    since = 0  # the first step of the pattern
    for step, loss in enumerate(losses):
        before, own = local.step.pattern, losses[since : step + 1]
        local.after_step(step, loss)
        looks = step > tau and step % tau == 0 and len(own) >= 2 * tau
        rose = looks and sum(own[-tau:]) > sum(own[-2 * tau : -tau])
        assert (local.step.pattern is not before) == rose
        since = step + 1 if rose else since


def test_scores_every_tau_count_only_the_looks_at_the_loss() -> None:
    local = start({"score_every": "tau"})
    for step in range(10):  # looks at steps 6 and 9, loss falling
        local.after_step(step, 10.0 - step)
    np.testing.assert_array_equal(local.state()["scores"], 2.0 * local.step.pattern.mask)


def test_stage_one_keeps_exactly_s_b_rows_of_each_block_and_draws_anew_each_round() -> None:
    patterns = [start({}, round=r).step.pattern for r in range(1, 6)]
    assert all(p.counts == {"layer0": 5, "layer1": 4} for p in patterns)  # floor(0.5 J + 0.5)
    assert len({p.mask.tobytes() for p in patterns}) > 1


def test_a_retried_round_draws_what_it_drew() -> None:
    assert start({}, round=2).step.pattern == start({}, round=2).step.pattern


def test_stage_two_keeps_the_highest_scores_and_freezes_them() -> None:
    scores = np.arange(16, dtype=np.float64)[::-1].copy()
    local = start({}, round=6, state={"scores": scores})
    assert local.step.pattern.kept["layer0"].tolist() == [0, 1, 2, 3, 4]
    assert local.step.pattern.kept["layer1"].tolist() == [0, 1, 2, 3]
    before = local.step.pattern
    for step in range(20):
        local.after_step(step, float(step))  # a rising loss redraws nothing now
    assert local.step.pattern is before
    np.testing.assert_array_equal(local.state()["scores"], scores)


def test_stage_two_breaks_ties_at_random_and_still_keeps_s_b() -> None:
    flat = {"scores": np.ones(16)}
    patterns = [start({}, round=r, state=flat).step.pattern for r in range(6, 12)]
    assert all(p.counts == {"layer0": 5, "layer1": 4} for p in patterns)
    assert len({p.mask.tobytes() for p in patterns}) > 1


def test_stage_begins_after_the_boundary() -> None:
    falling = {"scores": np.arange(16, dtype=np.float64)[::-1].copy()}
    assert start({}, round=5, state=falling).step.pattern != start({}, round=6, state=falling).step.pattern


def test_scale_keeps_the_expectation_of_activations() -> None:
    assert start({"dropout": [200]}).step.scale == pytest.approx(1 / 0.8)
    assert start({"scale": False}).step.scale == 1.0
    assert start({"dropout": [0]}).step.scale == 1.0


def test_each_tier_has_its_rate_and_the_last_serves_the_rest() -> None:
    method = open_method("fedbiad", {"dropout": [200, 400]})
    assert [method.dropout(tier) for tier in range(3)] == [200, 400, 400]
    assert method.counts(LAYOUT, 1) == {"layer0": 5, "layer1": 4}


def test_a_pattern_with_the_wrong_count_is_refused() -> None:
    method = open_method("fedbiad", {"dropout": [500]})
    method.check(Pattern.seeded(LAYOUT, 500, 1), 0)
    with pytest.raises(FrameError, match="keeps 9 units of block 'layer0'") as caught:
        method.check(Pattern.full(LAYOUT), 0)
    assert caught.value.code == "pattern"


@pytest.mark.parametrize(
    "wrong",
    [
        {"dropout": [1000]},
        {"dropout": []},
        {"tau": 0},
        {"tau_in": "days"},
        {"variance": -1},
        {"rule": "median"},
        {"colour": "red"},
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_method("fedbiad", wrong)


def test_an_unknown_method_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"no method 'fedbad'; there are .*fedavg, fedbiad"):
        open_method("fedbad", {})


def test_eq_13_gives_a_variance_that_float32_cannot_see() -> None:
    """s2 of eq. (13) for the FMNIST MLP: weights drawn with it are the weights."""
    S, m, d, D, L, B = 0.5 * (784 * 256 + 256 * 256 + 2560), 60 * 60 * 60, 784, 256, 3, 2.0
    braces = (d + 1 + 1 / (B * D - 1)) ** 2 + 1 / ((B * D) ** 2 - 1) + 2 / (B * D - 1) ** 2
    s2 = S / (16 * m * d**2) / math.log(3 * D) * (2 * B * D) ** (-2 * L) / braces
    assert s2 < 1e-27
    weight = np.float32(0.01)
    assert np.float32(weight + math.sqrt(s2)) == weight
