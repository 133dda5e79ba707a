"""AFD against its map and its choice to keep or redraw, written out plainly."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.measure.models import mlp_layout
from edge_fl.methods.afd import draw_by_score
from edge_fl.methods.base import Ask, Job, Method, open_method
from edge_fl.methods.capabilities import ClientReport

LAYOUT = mlp_layout(6, 9, 7, 3)
LOSSES = st.lists(st.floats(0.125, 10, width=16), min_size=1, max_size=12)


def assign(method: Method, client: str, round: int, tier: int = 0) -> Pattern:
    pattern = method.assign(Ask(LAYOUT, client, tier, round, 3))
    assert pattern is not None
    return pattern


def heard(client: str, loss: float, pattern: Pattern, tier: int = 0, samples: int = 10) -> ClientReport:
    return ClientReport(client, tier, samples, loss, pattern)


def drawn(scores: NDArray[np.float64], owner: str, round: int) -> Pattern:
    return draw_by_score(LAYOUT, 500, scores, Stream.of(seed=3, purpose="afd-pattern", client=owner, round=round))


class Reference:
    """One score map, as the paper tells it."""

    def __init__(self, owner: str, floor: float) -> None:
        self.owner, self.floor = owner, floor
        self.scores = [0.0] * LAYOUT.units
        self.loss: float | None = None
        self.kept: Pattern | None = None

    def expected(self, round: int) -> Pattern:
        if self.kept is not None:
            return self.kept
        return drawn(np.array([score + self.floor for score in self.scores]), self.owner, round)

    def learn(self, loss: float, pattern: Pattern) -> None:
        self.kept = None
        if self.loss is not None and loss < self.loss:
            for unit in range(LAYOUT.units):
                if pattern.mask[unit]:
                    self.scores[unit] += (self.loss - loss) / self.loss
            self.kept = pattern
        self.loss = loss


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.125, 10, width=16)), max_size=15))
def test_multi_keeps_and_redraws_for_each_client_by_its_own_losses(script: list[tuple[str, float]]) -> None:
    method = open_method("afd", {"floor": 0.25})
    references = {client: Reference(client, 0.25) for client in "ab"}
    for number, (client, loss) in enumerate(script, start=1):
        for each, reference in references.items():  # asking changes nothing, however often
            assert assign(method, each, number) == assign(method, each, number) == reference.expected(number)
        pattern = assign(method, client, number)
        method.learn(number, [heard(client, loss, pattern)])
        references[client].learn(loss, pattern)


@given(LOSSES)
def test_single_has_one_sub_model_and_learns_from_the_mean_loss(losses: list[float]) -> None:
    method, reference = open_method("afd", {"maps": "single", "floor": 0.25}), Reference("|0", 0.25)
    for number, loss in enumerate(losses, start=1):
        pattern = assign(method, "a", number)
        assert pattern == assign(method, "b", number) == reference.expected(number)
        # 10 samples and 1000: a client counts 1
        updates = [heard("a", loss / 2, pattern), heard("b", loss * 1.5, pattern, samples=1000)]
        method.learn(number, updates)
        reference.learn(float(np.mean([loss / 2, loss * 1.5])), pattern)


def test_a_scripted_client() -> None:
    method = open_method("afd", {"floor": 1.0})
    first = assign(method, "a", 1)
    method.learn(1, [heard("a", 4.0, first)])  # nothing to compare with: redraw
    second = assign(method, "a", 2)
    assert second == drawn(np.ones(LAYOUT.units), "a", 2)
    method.learn(2, [heard("a", 3.0, second)])  # fell by a quarter: keep
    assert assign(method, "a", 3) == assign(method, "a", 4) == second
    method.learn(4, [heard("a", 3.0, second)])  # did not fall: redraw, by score
    assert assign(method, "a", 5) == drawn(1 + 0.25 * second.mask, "a", 5)
    assert assign(method, "b", 5) == drawn(np.ones(LAYOUT.units), "b", 5)


def test_single_has_a_map_for_each_rate() -> None:
    method = open_method("afd", {"maps": "single", "dropout": [200, 500]})
    weak, strong = assign(method, "a", 1, tier=1), assign(method, "b", 1, tier=0)
    assert weak == assign(method, "c", 1, tier=2)
    assert (weak.counts, strong.counts) == (method.counts(LAYOUT, 1), method.counts(LAYOUT, 0))
    method.learn(1, [heard("a", 2.0, weak, 1), heard("b", 2.0, strong, 0)])
    again = assign(method, "a", 2, tier=1)
    method.learn(2, [heard("a", 1.0, again, 1), heard("b", 3.0, assign(method, "b", 2), 0)])
    assert assign(method, "c", 3, tier=1) == again


def test_a_device_that_changed_its_tier_is_given_a_sub_model_of_the_new_one() -> None:
    method = open_method("afd", {"dropout": [200, 700]})
    for number, loss in enumerate([2.0, 1.0], start=1):
        kept = assign(method, "a", number)
        method.learn(number, [heard("a", loss, kept)])
    assert assign(method, "a", 3) == kept
    assert assign(method, "a", 3, tier=1).counts == method.counts(LAYOUT, 1)


def test_of_one_map_and_several_sub_models_each_scores_by_its_own_losses() -> None:
    method = open_method("afd", {"maps": "single"})
    first, second = drawn(np.zeros(LAYOUT.units), "x", 1), drawn(np.zeros(LAYOUT.units), "x", 2)
    method.learn(1, [heard("a", 4.0, first)])
    method.learn(2, [heard("a", 2.0, first), heard("b", 1.0, second), heard("c", 2.0, second)])
    expected = first.mask * 0.5 + second.mask * (2.0 - 1.5) / 2.0
    np.testing.assert_allclose(method.state_dict()["scores||0"], expected)
    assert assign(method, "a", 3) == second


def test_without_a_floor_the_first_to_improve_is_drawn_for_ever() -> None:
    method = open_method("afd", {})
    method.learn(1, [heard("a", 2.0, assign(method, "a", 1))])
    best = assign(method, "a", 2)
    method.learn(2, [heard("a", 1.0, best)])
    method.learn(3, [heard("a", 5.0, assign(method, "a", 3))])
    assert all(assign(method, "a", number) == best for number in range(4, 20))


def test_zero_scores_are_uniform_and_keep_s_b() -> None:
    patterns = [drawn(np.zeros(LAYOUT.units), "a", number) for number in range(2000)]
    assert all(p.counts == {"layer0": 5, "layer1": 4} for p in patterns)
    rate = np.mean([p.mask for p in patterns], axis=0)
    np.testing.assert_allclose(rate, [5 / 9] * 9 + [4 / 7] * 7, atol=0.05)


def test_a_draw_follows_the_scores_without_replacement() -> None:
    """Against drawing one unit after another, each in proportion to its score among those left."""
    layout, weights = mlp_layout(2, 4, 2), np.array([1.0, 2.0, 3.0, 6.0])
    exact = np.zeros(4)
    for i in range(4):
        for j in set(range(4)) - {i}:
            probability = weights[i] / 12 * weights[j] / (12 - weights[i])
            exact[[i, j]] += probability
    streams = (Stream.of(seed=0, purpose="afd-pattern", round=r) for r in range(6000))
    rate = np.mean([draw_by_score(layout, 500, weights, s).mask for s in streams], axis=0)
    np.testing.assert_allclose(rate, exact, atol=0.02)


def test_units_without_a_score_come_last() -> None:
    weights = np.zeros(LAYOUT.units)
    weights[[1, 4]] = 1e-9, 5.0
    for number in range(20):
        pattern = drawn(weights, "a", number)
        assert pattern.mask[[1, 4]].all()
        assert pattern.counts == {"layer0": 5, "layer1": 4}


def test_the_device_trains_what_was_assigned_and_an_update_has_the_docstrings_size(
    fmnist: Layout, numbers_sent: Callable[[Method, Pattern], int]
) -> None:
    method = open_method("afd", {})
    pattern = method.assign(Ask(fmnist, "a", 0, 1, 0))
    assert pattern is not None
    local = method.local(Job(fmnist, "a", 1, 0, {}, {}, pattern))
    assert local.upload is pattern
    assert (local.step.scale, method.rule) == (2.0, "holders")
    assert numbers_sent(method, pattern) == 784 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10
    rows = open_method("afd", {"mode": "rows", "scale": False})
    assert numbers_sent(rows, pattern) == 784 * 128 + 128 + 256 * 128 + 128 + 2560 + 10
    assert rows.local(Job(fmnist, "a", 1, 0, {}, {}, pattern)).step.scale == 1.0


@pytest.mark.parametrize("wrong", [{"maps": "two"}, {"floor": -1}, {"floor": "nan"}, {"dropout": [-1]}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_method("afd", wrong)
