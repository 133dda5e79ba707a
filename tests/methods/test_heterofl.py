"""HeteroFL: counts and scaler of each level, fixed and dynamic assignment."""

import math
from collections import Counter
from collections.abc import Callable

import pytest

from edge_fl.bench.models import mlp_layout
from edge_fl.errors import ConfigError, FrameError
from edge_fl.layout import Layout
from edge_fl.methods.base import Ask, Job, Method, open_method
from edge_fl.pattern import Pattern

LAYOUT = mlp_layout(6, 64, 160, 3)
RATES = [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]


def assign(method: Method, tier: int = 0, *, client: str = "a", round: int = 1) -> Pattern:
    pattern = method.assign(Ask(LAYOUT, client, tier, round, 3))
    assert pattern is not None
    return pattern


@pytest.mark.parametrize(("tier", "rate"), list(enumerate([*RATES, 1 / 16])))
def test_a_level_keeps_its_share_from_the_front_and_scales_by_its_reciprocal(tier: int, rate: float) -> None:
    method = open_method("heterofl", {})
    pattern = assign(method, tier)
    for block in LAYOUT.blocks:
        assert pattern.kept[block.name].tolist() == list(range(int(block.size * rate)))
    assert method.counts(LAYOUT, tier) == pattern.counts
    assert method.programs(LAYOUT, tier) == [("plain", pattern.counts)]
    own = open_method("heterofl", method.for_tier(tier))
    local = own.local(Job(LAYOUT, "a", 1, 3, {}, {}, pattern))
    assert local.scale == 1 / rate
    assert local.upload is pattern


@pytest.mark.parametrize("units", [*range(1, 200), 256, 512, 1024, 1984])
def test_level_e_rounds_as_the_docstring_says(units: int) -> None:
    layout = mlp_layout(1, units, 1)
    kept = open_method("heterofl", {"levels": ["e"]}).counts(layout, 0)["layer0"]
    assert kept == math.ceil(units / 16) if units % 16 == 0 else 0 < kept <= math.ceil(units / 16)


def test_fixed_levels_do_not_change_with_the_round() -> None:
    method = open_method("heterofl", {"levels": ["a", "c"]})
    assert len({assign(method, 1, client=c, round=r) for c in "abc" for r in range(5)}) == 1


def test_dynamic_levels_are_drawn_uniformly_anew_each_round_and_alike_on_a_retry() -> None:
    method = open_method("heterofl", {"levels": ["a", "b", "e"], "dynamic": True})
    drawn = [assign(method, 1, round=r) for r in range(1500)]
    seen = Counter(p.counts["layer0"] for p in drawn)
    assert sorted(seen) == [4, 32, 64]
    assert all(abs(count - 500) <= 5 * math.sqrt(1500 * 2 / 9) for count in seen.values())
    assert assign(method, 1, round=7) == drawn[7]
    assert method.counts(LAYOUT, 1)["layer0"] == 64
    assert [p["layer0"] for _, p in method.programs(LAYOUT, 1)] == [4, 32, 64]


def test_an_update_of_a_drawn_level_passes_and_one_of_another_does_not() -> None:
    method = open_method("heterofl", {"dynamic": True})
    for level in (1000, 500, 250, 125, 62):
        pattern = Pattern.prefix(LAYOUT, level)
        method.check(pattern, 0, pattern)
    with pytest.raises(FrameError, match="not the one that was assigned"):
        method.check(Pattern.full(LAYOUT), 0, Pattern.prefix(LAYOUT, 500))


def test_the_scaler_may_be_left_out_and_only_a_level_has_one() -> None:
    job = Job(LAYOUT, "a", 1, 3, {}, {}, Pattern.prefix(LAYOUT, 500))
    assert open_method("heterofl", {"scale": False}).local(job).scale == 1.0
    for pattern in (Pattern.prefix(LAYOUT, 300), Pattern.seeded(LAYOUT, 500, 1)):
        with pytest.raises(ConfigError, match="no prefix of a HeteroFL level"):
            open_method("heterofl", {}).local(Job(LAYOUT, "a", 1, 3, {}, {}, pattern))


@pytest.mark.parametrize(("tier", "k"), list(enumerate([256, 128, 64, 32, 16])))
def test_an_update_has_the_size_that_the_docstring_gives(
    tier: int, k: int, fmnist: Layout, numbers_sent: Callable[[Method, Pattern], int]
) -> None:
    method = open_method("heterofl", {})
    pattern = method.assign(Ask(fmnist, "a", tier, 1, 0))
    assert pattern is not None
    assert numbers_sent(method, pattern) == 784 * k + k + k * k + k + 10 * k + 10


@pytest.mark.parametrize("mask", [True, False])
def test_the_mask_may_be_left_out(mask: bool) -> None:
    local = open_method("heterofl", {"mask": mask}).local(
        Job(LAYOUT, "a", 1, 3, {}, {}, Pattern.prefix(LAYOUT, 500))
    )
    assert local.masks_labels is mask


def test_the_mean_is_over_holders_and_unweighted() -> None:
    assert open_method("heterofl", {}).rule == "count"


@pytest.mark.parametrize("wrong", [{"levels": []}, {"levels": ["f"]}, {"rate": 2}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_method("heterofl", wrong)
