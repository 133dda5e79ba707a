"""FjORD: nested prefixes, p uniform over the widths up to p_max at each step, p_max uploaded."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern, Prefix
from edge_fl.measure.models import mlp_layout
from edge_fl.methods.base import Job, LocalHalf, Method, open_method

LAYOUT = mlp_layout(6, 9, 7, 3)
WIDTHS = [200, 400, 600, 800, 1000]


def start(tier: int, *, round: int = 1, client: str = "a", layout: Layout = LAYOUT) -> LocalHalf:
    """The device half as a device of ``tier`` opens it."""
    method = open_method("fjord", {"widths": WIDTHS})
    return method.local(Job(layout, client, round, 3, {}, {}, tier=tier))


def steps(local: LocalHalf, count: int) -> list[Pattern]:
    trained = []
    for step in range(count):
        trained.append(local.step.pattern)
        local.after_step(step, 1.0)
    return trained


def width(pattern: Pattern) -> int:
    assert isinstance(pattern.origin, Prefix)
    return pattern.origin.width


def test_a_sub_model_is_the_first_units_and_lies_inside_every_wider_one() -> None:
    trained = {width(p): p for p in steps(start(4), 100)}
    assert sorted(trained) == WIDTHS
    for narrow, wide in itertools.pairwise(WIDTHS):
        assert not (trained[narrow].mask & ~trained[wide].mask).any()
    for p, pattern in trained.items():
        for block in LAYOUT.blocks:
            assert pattern.kept[block.name].tolist() == list(range(math.ceil(p * block.size / 1000)))


@pytest.mark.parametrize("tier", [0, 1, 2, 3, 4, 7])
def test_p_is_uniform_over_the_widths_up_to_p_max(tier: int) -> None:
    allowed = WIDTHS[: tier + 1]
    seen = Counter(width(p) for p in steps(start(tier), 2000))
    assert sorted(seen) == allowed
    spread = 5 * math.sqrt(2000 * (1 / len(allowed)) * (1 - 1 / len(allowed)))
    assert all(abs(count - 2000 / len(allowed)) <= spread for count in seen.values())


@pytest.mark.parametrize("tier", range(5))
def test_the_upload_is_p_max_whatever_was_drawn_last(tier: int) -> None:
    local, method = start(tier), open_method("fjord", {"widths": WIDTHS})
    for step in range(10):
        assert width(local.upload) == WIDTHS[tier]
        assert local.upload.counts == method.counts(LAYOUT, tier)
        local.after_step(step, 1.0)
    method.check(local.upload, tier)


def test_draws_differ_by_client_and_round_and_a_retry_repeats_them() -> None:
    runs = {(c, r): [width(p) for p in steps(start(4, client=c, round=r), 30)] for c in "ab" for r in (1, 2)}
    assert len({tuple(run) for run in runs.values()}) == 4
    assert [width(p) for p in steps(start(4), 30)] == runs["a", 1]


def test_a_width_drawn_again_is_an_equal_step() -> None:
    """What the training loop goes by when it decides whether to regather."""
    half, seen = start(4), []
    for number in range(100):
        seen.append(half.step)
        half.after_step(number, 1.0)
    assert sum(step not in seen[:i] for i, step in enumerate(seen)) == 5


def test_programs_are_all_the_widths_that_a_step_may_draw() -> None:
    method = open_method("fjord", {"widths": WIDTHS})
    programs = [counts for variant, counts in method.programs(LAYOUT, 2) if variant == "plain"]
    assert programs == [{"layer0": 2, "layer1": 2}, {"layer0": 4, "layer1": 3}, {"layer0": 6, "layer1": 5}]
    assert all(p.counts in programs for p in steps(start(2), 50))


def test_widths_may_be_listed_from_the_ablest_tier_down() -> None:
    method = open_method("fjord", {"widths": [1000, 500, 250]})
    assert [method.allowed(tier) for tier in range(4)] == [(250, 500, 1000), (250, 500), (250,), (250,)]


@pytest.mark.parametrize("name", ["fjord", "fjord+kd", "fjord+efd"])
def test_a_device_evaluates_its_own_p_max(name: str) -> None:
    method = open_method(name, {"widths": [1000, 500, 250]})
    assert [method.evaluated_width(tier) for tier in range(4)] == [1000, 500, 250, 250]


def test_an_upload_that_is_not_the_prefix_is_refused() -> None:
    method = open_method("fjord", {"widths": WIDTHS})
    with pytest.raises(FrameError) as caught:
        method.check(Pattern.seeded(LAYOUT, 600, 1), 1)
    assert caught.value.code == "pattern"
    with pytest.raises(FrameError):
        method.check(Pattern.prefix(LAYOUT, 200), 1)


@pytest.mark.parametrize(("tier", "k"), list(enumerate([52, 103, 154, 205, 256])))
def test_an_update_has_the_size_that_the_docstring_gives(
    tier: int, k: int, fmnist: Layout, numbers_sent: Callable[[Method, Pattern], int]
) -> None:
    local = start(tier, layout=fmnist)
    assert (
        numbers_sent(open_method("fjord", {"widths": WIDTHS}), local.upload)
        == 784 * k + k + k * k + k + 10 * k + 10
    )


def test_by_default_tier_0_is_the_ablest() -> None:
    method = open_method("fjord", {})
    assert [method.p_max(tier) for tier in range(6)] == [1000, 800, 600, 400, 200, 200]


def test_eq_2_is_the_holders_rule_and_activations_are_not_scaled() -> None:
    assert open_method("fjord", {"widths": WIDTHS}).rule == "holders"
    assert start(0).step.scale == 1.0


def test_theorem_1_ordered_dropout_of_a_linear_net_recovers_the_truncated_svd() -> None:
    """U V x against A x with x uniform on the unit ball: with hidden units dropped as FjORD draws them, the first b
    columns of U and rows of V become A's best approximation of rank b, for every b that p stands for.
    """
    units, rng = 4, np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((units, units)))[0] for _ in range(2))
    values = np.array([4.0, 3.0, 2.0, 1.0])
    a = left * values @ right.T
    u, v = 0.3 * rng.standard_normal((units, units)), 0.3 * rng.standard_normal((units, units))
    method = open_method("fjord", {"widths": [1000, 750, 500, 250]})
    local = method.local(Job(mlp_layout(units, units, units), "a", 1, 3, {}, {}))
    for step in range(4000):
        b = local.step.pattern.counts["layer0"]
        gap = u[:, :b] @ v[:b] - a  # E x x^T is a multiple of I, so that the loss is |gap|^2 but for a factor
        u[:, :b], v[:b] = u[:, :b] - 0.1 * gap @ v[:b].T, v[:b] - 0.1 * u[:, :b].T @ gap
        local.after_step(step, 1.0)
    for b in range(1, units + 1):
        np.testing.assert_allclose(u[:, :b] @ v[:b], left[:, :b] * values[:b] @ right[:, :b].T, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"widths": []}, {"widths": [0]}, {"widths": [1001]}, {"widths": [500, 500]}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_method("fjord", wrong)
