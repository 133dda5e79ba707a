"""FjORD with eFD: widths up to the next tier's, of which random units are dropped, at most a quarter."""

import math
from collections import Counter

import numpy as np
import pytest

from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.pattern import Pattern
from edge_fl.measure.models import mlp_layout
from edge_fl.methods.base import Job, LocalHalf, open_method

LAYOUT = mlp_layout(6, 40, 20, 3)
WIDTHS = [1000, 800, 600, 400, 200]
TIERS = [(1000, 1000, 0.0), (800, 1000, 0.2), (600, 800, 0.25), (400, 600, 0.25), (200, 400, 0.25)]
"""p_max, p_next, and the rate that is dropped of p_next: 1/3 and 1/2 are more than the cap."""


def start(tier: int, round: int = 1, **parameters: object) -> LocalHalf:
    method = open_method("fjord+efd", {"widths": WIDTHS, **parameters})
    return method.local(Job(LAYOUT, "a", round, 3, {}, {}, tier=tier))


def steps(half: LocalHalf, count: int) -> list[tuple[int, Pattern, float]]:
    trained = []
    for step in range(count):
        trained.append((half.step.width, half.step.pattern, half.step.scale))
        half.after_step(step, 1.0)
    return trained


@pytest.mark.parametrize("tier", range(5))
def test_widths_up_to_p_max_are_whole_and_p_next_less_random_units(tier: int) -> None:
    p_max, p_next, rate = TIERS[tier]
    trained = steps(start(tier), 400)
    allowed = [width for width in WIDTHS if width <= p_next]
    seen = Counter(width for width, _, _ in trained)
    spread = 5 * math.sqrt(400 * (1 / len(allowed)) * (1 - 1 / len(allowed)))
    assert sorted(seen, reverse=True) == allowed
    assert all(abs(count - 400 / len(allowed)) <= spread for count in seen.values())
    for width, pattern, scale in trained:
        prefix = Pattern.prefix(LAYOUT, width)
        if width <= p_max:
            assert (pattern, scale) == (prefix, 1.0)
        else:
            assert not (pattern.mask & ~prefix.mask).any()
            for name, count in prefix.counts.items():
                assert pattern.counts[name] == math.ceil(count * (1 - rate) - 1e-9)
            assert scale == pytest.approx(1 / (1 - rate))


def test_every_unit_of_p_next_is_kept_as_often_and_drawn_anew_each_step() -> None:
    masks = [pattern.mask for width, pattern, _ in steps(start(3), 3000) if width == 600]
    rate = np.mean(masks, axis=0)[Pattern.prefix(LAYOUT, 600).mask]
    assert len({mask.tobytes() for mask in masks}) > 0.9 * len(masks)
    np.testing.assert_allclose(rate, 0.75, atol=5 * math.sqrt(0.75 * 0.25 / len(masks)))


@pytest.mark.parametrize("tier", range(6))
def test_the_upload_is_p_next_and_no_other_prefix_passes(tier: int) -> None:
    p_next = TIERS[min(tier, 4)][1]
    method, half = open_method("fjord+efd", {"widths": WIDTHS}), start(tier)
    assert half.upload == Pattern.prefix(LAYOUT, p_next)
    assert half.upload.counts == method.counts(LAYOUT, tier)
    method.check(half.upload, tier)
    with pytest.raises(FrameError):
        method.check(Pattern.prefix(LAYOUT, p_next - 200), tier)


def test_programs_are_all_that_a_step_may_keep() -> None:
    method = open_method("fjord+efd", {"widths": WIDTHS})
    for tier in range(5):
        programs = [counts for _, counts in method.programs(LAYOUT, tier)]
        kept = [pattern.counts for _, pattern, _ in steps(start(tier), 200)]
        assert all(counts in kept for counts in programs)
        assert all(counts in programs for counts in kept)


def test_the_cap_and_the_scale_may_be_set() -> None:
    half = start(4, cap=500, scale=False)
    whole = {width: pattern.counts for width, pattern, scale in steps(half, 50) if scale == 1.0}
    assert whole[400] == whole[200] == Pattern.prefix(LAYOUT, 200).counts
    capped = {width: pattern for width, pattern, _ in steps(start(4, cap=0), 50)}
    assert capped[400] == Pattern.prefix(LAYOUT, 400)


def test_a_retry_repeats_the_draws_and_another_round_does_not() -> None:
    one, again, other = ([p.mask.tobytes() for _, p, _ in steps(start(1, r), 30)] for r in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize("wrong", [{"cap": 1000}, {"cap": -1}, {"widths": [500, 500]}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_method("fjord+efd", wrong)
