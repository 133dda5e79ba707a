"""Masks of a model's own dropout, as a device draws them."""

import hashlib

import msgspec
import numpy as np
import pytest

from edge_fl.core.dropout import Dropout, drawn_masks, masks_of_nothing_dropped
from edge_fl.core.layout import Block, Layout, Segment, Tensor
from edge_fl.core.pattern import Pattern

LAYOUT = Layout((Block("h", 8),), ())
AXES = ((Segment(None, inner=5),), (Segment("h", inner=3),))
PLACE = Dropout(Tensor("drop", (5, 24), AXES, AXES), 0.25)


def drawn(pattern: Pattern, *, batch: int = 4, key: int = 1) -> np.ndarray:
    return drawn_masks([PLACE], pattern, batch=batch, key=key)["dropout.drop"]


def test_a_mask_has_zeros_at_the_probability_and_a_mean_of_one() -> None:
    mask = drawn(Pattern.full(LAYOUT), batch=2000)
    assert mask.shape == (2000, 5, 24)
    assert mask.dtype == np.float32
    assert set(np.unique(mask)) == {np.float32(0), np.float32(1 / 0.75)}
    # 240,000 draws: three deviations of their share are 0.0027.
    assert abs((mask == 0).mean() - 0.25) < 0.0027
    assert abs((mask == 0).mean(axis=(0, 1)) - 0.25).max() < 0.02


def test_a_units_mask_is_the_same_whatever_else_is_kept() -> None:
    full, part = Pattern.full(LAYOUT), Pattern.seeded(LAYOUT, 500, key=3)
    kept = np.concatenate([np.arange(3 * unit, 3 * unit + 3) for unit in part.kept["h"]])
    assert len(kept) == 12
    np.testing.assert_array_equal(drawn(part), drawn(full)[:, :, kept])


def test_keys_and_places_have_draws_of_their_own() -> None:
    pattern = Pattern.full(LAYOUT)
    np.testing.assert_array_equal(drawn(pattern), drawn(pattern))
    assert (drawn(pattern, key=1) != drawn(pattern, key=2)).any()
    other = msgspec.structs.replace(PLACE, mask=msgspec.structs.replace(PLACE.mask, name="other"))
    both = drawn_masks([PLACE, other], pattern, batch=4, key=1)
    assert (both["dropout.drop"] != both["dropout.other"]).any()


def test_draws_stay_as_they_are() -> None:
    digest = hashlib.sha256(drawn(Pattern.full(LAYOUT)).tobytes()).hexdigest()
    assert digest[:16] == "4d5b255ceaa49a82"


def test_masks_of_nothing_dropped_are_ones() -> None:
    (mask,) = masks_of_nothing_dropped([PLACE], Pattern.seeded(LAYOUT, 500, key=3), batch=2).values()
    np.testing.assert_array_equal(mask, np.ones((2, 5, 12), dtype=np.float32))


@pytest.mark.parametrize("p", [0.0, 1.0, -0.5, float("nan")])
def test_a_probability_is_between_0_and_1(p: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Dropout(PLACE.mask, p)


def test_draws_are_those_that_the_protocol_names() -> None:
    """Philox4x64-10 of counters from 1, in Python's own numbers, and parts of 16 bits, lowest first."""
    words = [word for counter in (1, 2, 3) for word in _philox4x64((counter, 0, 0, 0), (7, 0))]
    parts = [word >> shift & 0xFFFF for word in words for shift in (0, 16, 32, 48)]
    place = Dropout(Tensor("drop", (11,), ((Segment(None, inner=11),),), ((Segment(None, inner=11),),)), 0.25)
    masks = drawn_masks([place, msgspec.structs.replace(place)], Pattern.full(LAYOUT), batch=1, key=7)
    expected = [0 if part >= round(0.75 * 65536) else np.float32(1 / 0.75) for part in parts[12:23]]
    np.testing.assert_array_equal(masks["dropout.drop"][0], expected)


def _philox4x64(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    (a, b, c, d), (low, high), word = counter, key, (1 << 64) - 1
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = (second >> 64) ^ b ^ low, second & word, (first >> 64) ^ d ^ high, first & word
        low, high = (low + 0x9E3779B97F4A7C15) & word, (high + 0xBB67AE8584CAA73B) & word
    return [a, b, c, d]


def test_a_mask_of_many_axes_is_refused() -> None:
    axes = ((Segment(None),),) * 17
    with pytest.raises(ValueError, match="16 axes at the most"):
        Dropout(Tensor("drop", (1,) * 17, axes, axes), 0.5)
