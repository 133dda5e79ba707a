"""FedDrop: fixed counts, fresh for each client and round, the same on a retry."""

from collections.abc import Callable

import numpy as np
import pytest

from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.layout import Block, Layout
from edge_fl.core.pattern import Pattern, Seeded
from edge_fl.measure.models import mlp_layout
from edge_fl.methods.base import Ask, Job, Method, open_method

LAYOUT = mlp_layout(6, 9, 7, 3)


def assign(method: Method, *, client: str = "a", tier: int = 0, round: int = 1, seed: int = 3) -> Pattern:
    pattern = method.assign(Ask(LAYOUT, client, tier, round, seed))
    assert pattern is not None
    return pattern


def test_it_keeps_s_b_units_of_each_block_by_tier() -> None:
    method = open_method("feddrop", {"dropout": [200, 500]})
    expected = [{"layer0": 7, "layer1": 6}, {"layer0": 5, "layer1": 4}, {"layer0": 5, "layer1": 4}]
    for tier, counts in enumerate(expected):
        assert assign(method, tier=tier).counts == counts == method.counts(LAYOUT, tier)
        assert method.programs(LAYOUT, tier) == [("plain", counts)]


def test_each_client_round_and_seed_has_its_own_pattern_and_a_retry_the_same() -> None:
    method = open_method("feddrop", {})
    drawn = [assign(method, client=c, round=r, seed=s) for c in "abcd" for r in (1, 2, 3) for s in (0, 1)]
    assert len({p.origin for p in drawn}) == 24
    assert len({p.mask.tobytes() for p in drawn}) > 20  # of 126 * 35 patterns
    assert assign(method, round=2) == assign(open_method("feddrop", {}), round=2)


def test_every_unit_is_kept_as_often() -> None:
    method = open_method("feddrop", {})
    rate = np.mean([assign(method, round=r).mask for r in range(2000)], axis=0)
    np.testing.assert_allclose(rate, [5 / 9] * 9 + [4 / 7] * 7, atol=0.05)


@pytest.mark.parametrize(("parameters", "scale"), [({"dropout": [200]}, 1.25), ({"scale": False}, 1.0)])
def test_the_device_trains_what_was_assigned(parameters: dict[str, object], scale: float) -> None:
    method = open_method("feddrop", parameters)
    pattern = assign(method)
    local = method.local(Job(LAYOUT, "a", 1, 3, {}, {}, pattern))
    local.after_step(0, 1.0)
    assert local.step.pattern is local.upload is pattern
    assert local.step.scale == pytest.approx(scale)
    assert local.state() == {}


@pytest.mark.parametrize("name", ["feddrop", "afd"])
def test_recurrent_layers_stay_whole_and_nothing_is_scaled_beside_them(name: str) -> None:
    layout = Layout((Block("embedding", 8), Block("lstm.l0", 6, recurrent=True), Block("hidden", 5)), ())
    method = open_method(name, {"dropout": [500]})
    counts = {"embedding": 4, "lstm.l0": 6, "hidden": 3}
    patterns = [method.assign(Ask(layout, "a", 0, number, 3)) for number in range(1, 9)]
    for pattern in patterns:
        assert pattern is not None
        assert pattern.counts == counts == method.counts(layout, 0)
        local = method.local(Job(layout, "a", 1, 3, {}, {}, pattern))
        assert (local.step.pattern, local.step.scale) == (pattern, 1.0)
    assert len(set(patterns)) > 4


def test_a_task_without_a_pattern_is_refused() -> None:
    with pytest.raises(ConfigError, match="round 4 assigns no pattern"):
        open_method("feddrop", {}).local(Job(LAYOUT, "a", 4, 3, {}, {}))


def test_an_update_of_another_pattern_is_refused() -> None:
    method = open_method("feddrop", {})
    pattern = assign(method)
    method.check(Pattern(LAYOUT, pattern.mask), 0, pattern)
    with pytest.raises(FrameError, match="not the one that was assigned"):
        method.check(assign(method, round=2), 0, pattern)


@pytest.mark.parametrize(
    ("mode", "numbers"),
    [
        ("units", 784 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10),
        ("rows", 784 * 128 + 128 + 256 * 128 + 128 + 2560 + 10),
    ],
)
def test_an_update_has_the_size_that_the_docstring_gives(
    mode: str, numbers: int, fmnist: Layout, numbers_sent: Callable[[Method, Pattern], int]
) -> None:
    method = open_method("feddrop", {"mode": mode})
    pattern = method.assign(Ask(fmnist, "a", 0, 1, 0))
    assert pattern is not None
    assert isinstance(pattern.origin, Seeded)
    assert numbers_sent(method, pattern) == numbers


def test_rules() -> None:
    assert open_method("feddrop", {}).rule == "holders"
    assert open_method("feddrop", {"rule": "mean"}).rule == "mean"


@pytest.mark.parametrize("wrong", [{"dropout": []}, {"dropout": [1000]}, {"rule": "zeros"}, {"colour": "red"}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_method("feddrop", wrong)
