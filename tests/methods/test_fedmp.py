"""FedMP's choice of units against norms added up one by one."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Block, Layout, Segment, Tensor
from edge_fl.core.pattern import Pattern, kept_counts
from edge_fl.measure.models import mlp_layout, random_weights
from edge_fl.methods.base import Ask, Job, Method, open_method
from edge_fl.methods.capabilities import ClientReport
from edge_fl.methods.fedmp import unit_norms

LAYOUT = mlp_layout(6, 9, 7, 3)


def choose(weights: dict[str, NDArray[np.float32]], *, dropout: int = 500, round: int = 1) -> Pattern:
    method = open_method("fedmp", {"dropout": [dropout]})
    return method.local(Job(LAYOUT, "a", round, 3, weights, {})).step.pattern


def test_it_keeps_the_rows_of_largest_l1_norm() -> None:
    weights = random_weights(LAYOUT, 5)
    pattern = choose(weights, dropout=300)
    for name, kept in (("layer0", 6), ("layer1", 5)):
        norms = []
        for row, bias in zip(weights[f"{name}.weight"], weights[f"{name}.bias"], strict=True):
            norms.append(sum(abs(float(w)) for w in row) + abs(float(bias)))
        largest = sorted(range(len(norms)), key=lambda unit: -norms[unit])[:kept]
        assert pattern.kept[name].tolist() == sorted(largest)


def test_the_bias_is_part_of_a_row() -> None:
    weights = {t.name: np.zeros(t.shape, dtype=np.float32) for t in LAYOUT.tensors}
    weights["layer0.bias"][[0, 2, 4, 6, 8]] = -1
    assert choose(weights).kept["layer0"].tolist() == [0, 2, 4, 6, 8]


def test_norms_follow_segments_and_leave_statistics_out() -> None:
    """Units whose rows are interleaved (outer 2, inner 3) after a stretch that no block owns."""
    own = (Segment(None, inner=4), Segment("b", outer=2, inner=3))
    free = (Segment(None, inner=2),)
    tensors = (
        Tensor("w", (2, 34), rows=(free, own), units=(free, own)),
        Tensor("mean", (34,), rows=(own,), units=(own,), role="statistic"),
    )
    layout = Layout((Block("b", 5),), tensors)
    weights = random_weights(layout, 2)
    expected = np.zeros(5)
    for unit in range(5):
        for o in range(2):
            for i in range(3):
                expected[unit] += np.abs(weights["w"][:, 4 + (o * 5 + unit) * 3 + i].astype(np.float64)).sum()
    np.testing.assert_allclose(unit_norms(layout, weights), expected)


def test_ties_are_broken_at_random_but_a_retry_chooses_alike() -> None:
    flat = {t.name: np.ones(t.shape, dtype=np.float32) for t in LAYOUT.tensors}
    chosen = [choose(flat, round=r) for r in range(8)]
    assert all(p.counts == {"layer0": 5, "layer1": 4} for p in chosen)
    assert len(set(chosen)) > 1
    assert choose(flat, round=3) == chosen[3]


def test_each_tier_has_its_ratio() -> None:
    method = open_method("fedmp", {"dropout": [0, 300]})
    assert [method.dropout(tier) for tier in range(3)] == [0, 300, 300]
    assert method.counts(LAYOUT, 1) == {"layer0": 6, "layer1": 5}
    assert (method.rule, method.weighting) == ("mean", "samples")


def test_an_update_has_the_size_that_the_docstring_gives(
    fmnist: Layout, numbers_sent: Callable[[Method, Pattern], int]
) -> None:
    method = open_method("fedmp", {})
    pattern = method.local(Job(fmnist, "a", 1, 0, random_weights(fmnist, 1), {})).upload
    method.check(pattern, 0)
    assert numbers_sent(method, pattern) == 784 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10


def ask(method: Method, client: str, round: int, tier: int = 0) -> Pattern:
    pattern = method.assign(Ask(LAYOUT, client, tier, round, 3, random_weights(LAYOUT, round)))
    assert pattern is not None
    return pattern


def heard(client: str, loss: float, pattern: Pattern, seconds: float | None, tier: int = 0) -> ClientReport:
    return ClientReport(client, tier, 10, loss, pattern, seconds=seconds)


def test_a_bandits_rounds_earn_the_fall_of_the_loss_over_how_far_the_time_is_from_the_mean() -> None:
    method = open_method("fedmp", {"ratio": "bandit", "dropout": [600], "granularity": 200, "discount": 0.5})
    first = {client: ask(method, client, 1) for client in "ab"}
    method.learn(1, [heard("a", 4.0, first["a"], 1.0), heard("b", 2.0, first["b"], 3.0)])
    assert not method.state_dict()["plays|0|a"].any()  # there is no loss that it could have fallen from

    second = {client: ask(method, client, 2) for client in "ab"}
    method.learn(2, [heard("a", 3.0, second["a"], 1.0), heard("b", 1.8, second["b"], 3.0)])
    learned = method.state_dict()
    # Both are half the mean away from it: a earns 0.25 / 0.5, the most, and b 0.1 / 0.5.
    assert learned["most"] == 0.5
    assert learned["rewards|0|a"].sum() == 1
    assert learned["rewards|0|b"].sum() == pytest.approx(0.4)
    arm = int(np.argmax(learned["plays|0|a"]))
    assert second["a"].counts == kept_counts(LAYOUT, 200 * arm)
    assert learned["rewards|0|a"][arm] == 1

    # Whose time is not known learns nothing; b's time is the mean, and 0.09 / 0.1 is more than ever.
    third = {client: ask(method, client, 3) for client in "ab"}
    method.learn(3, [heard("a", 1.5, third["a"], None), heard("b", 0.91 * 1.8, third["b"], 2.0)])
    assert method.state_dict()["plays|0|a"].sum() == 1
    assert method.state_dict()["plays|0|b"].sum() == 1.5
    assert method.state_dict()["most"] == pytest.approx(0.9)
    assert method.state_dict()["rewards|0|b"].sum() == pytest.approx(0.5 * 0.4 + 1)

    # A loss that rises earns nothing, which is known then; the most is discounted.
    fourth = ask(method, "a", 4)
    method.learn(4, [heard("a", 9.0, fourth, 1.0)])
    assert method.state_dict()["plays|0|a"].sum() == 1.5
    assert method.state_dict()["rewards|0|a"].sum() == 0.5
    assert method.state_dict()["most"] == pytest.approx(0.45)

    # Within a tenth of the mean all times are alike.
    fifth = {client: ask(method, client, 5) for client in "ab"}
    method.learn(5, [heard("a", 8.1, fifth["a"], 0.95), heard("b", 0.91 * 1.62, fifth["b"], 1.05)])
    assert method.state_dict()["rewards|0|a"].sum() == pytest.approx(0.5 * 0.5 + 1)


def test_a_bandit_prunes_what_weighs_least_of_the_rounds_model_and_its_client_trains_that() -> None:
    method = open_method("fedmp", {"ratio": "bandit", "dropout": [500]})
    for number in range(1, 6):
        pattern, weights = ask(method, "a", number), random_weights(LAYOUT, number)
        assert ask(method, "a", number) == pattern
        norms = unit_norms(LAYOUT, weights)
        for block, at in (("layer0", slice(0, 9)), ("layer1", slice(9, 16))):
            kept = pattern.kept[block]
            assert set(np.argsort(-norms[at])[: len(kept)]) == set(kept.tolist())
        assert method.local(Job(LAYOUT, "a", number, 3, weights, {}, assigned=pattern)).step.pattern is pattern
        method.check(pattern, 0, pattern)
    asked = {ask(method, client, 1).counts["layer0"] for client in "abcdefghijklmnop"}
    assert len(asked) > 2
    assert min(asked) >= method.programs(LAYOUT, 0)[-1][1]["layer0"]


def test_a_bandit_of_each_tier_is_remembered() -> None:
    parameters = {"ratio": "bandit", "dropout": [200, 500]}
    method, other = open_method("fedmp", parameters), open_method("fedmp", parameters)
    for number in range(1, 5):
        patterns = {client: ask(method, client, number, tier) for tier, client in enumerate("ab")}
        method.learn(number, [heard(c, 3.0 / number, patterns[c], 1.0 + t, tier=t) for t, c in enumerate("ab")])
    assert method.state_dict()["plays|0|a"].shape == (3,)
    assert method.state_dict()["plays|1|b"].shape == (5,)  # 0.4 and 0.5 leave as many
    other.load_state_dict(LAYOUT, method.state_dict())
    assert [ask(other, c, 5, t) for t, c in enumerate("ab")] == [ask(method, c, 5, t) for t, c in enumerate("ab")]
    assert other.state_dict().keys() == method.state_dict().keys()


def test_ratios_that_leave_as_many_units_are_one_arm() -> None:
    """Of 9 and 7 units, 51 ratios leave 6 different numbers: an arm that were another's twin would never be played."""
    method = open_method("fedmp", {"ratio": "bandit", "dropout": [500], "granularity": 10})
    left = [counts for _, counts in method.programs(LAYOUT, 0)]
    assert len(left) == len({tuple(counts.values()) for counts in left}) < 12
    asked = []
    for number in range(1, 60):
        pattern = ask(method, "a", number)
        asked.append(tuple(pattern.counts.values()))
        method.learn(number, [heard("a", 0.99**number, pattern, 1.0)])
    assert set(asked) == {tuple(counts.values()) for counts in left}


def test_a_rehearsal_is_of_the_most_that_a_client_may_be_asked_for() -> None:
    method = open_method("fedmp", {"ratio": "bandit", "dropout": [300, 600]})
    assert all(method.assign(Ask(LAYOUT, "", tier, 1, 3)) == Pattern.full(LAYOUT) for tier in range(2))


def test_a_bandit_needs_a_program_for_each_of_its_ratios() -> None:
    method = open_method("fedmp", {"ratio": "bandit", "dropout": [500], "granularity": 250})
    needed = [("plain", kept_counts(LAYOUT, ratio)) for ratio in (0, 250, 500)]
    assert method.programs(LAYOUT, 0) == needed
    assert method.counts(LAYOUT, 0) == kept_counts(LAYOUT, 0)
    assert open_method("fedmp", {}).assign(Ask(LAYOUT, "a", 0, 1, 3)) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"dropout": [1000]},
        {"rule": "holders"},
        {"granularity": 0},
        {"discount": 0},
        {"discount": 1.5},
        {"ratio": "free"},
        {"ratio": "bandit", "dropout": [500, 90]},
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_method("fedmp", wrong)
