"""Draws of a secret key: they have the stated distribution, repeat for one key, and for no other."""

import numpy as np
import pytest

from edge_fl.core.secret_draws import KEY_BYTES, SecretStream


def test_a_key_repeats_its_draws_and_no_draw_repeats_another() -> None:
    one, same, other = (SecretStream(key) for key in (b"a" * KEY_BYTES, b"a" * KEY_BYTES, b"b" * KEY_BYTES))
    first = one.normal(1000)
    assert np.array_equal(first, same.normal(1000))
    assert not np.array_equal(first, one.normal(1000))
    assert not np.array_equal(first, other.normal(1000))


def test_a_fresh_stream_is_like_no_other() -> None:
    assert not np.array_equal(SecretStream.fresh().uniform(8), SecretStream.fresh().uniform(8))


def test_normals_are_standard_normals() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    drawn = SecretStream(b"fixed").normal(400_001)  # more than a block, and odd
    assert abs(drawn.mean()) < 4 / np.sqrt(len(drawn))
    assert abs(drawn.std() - 1) < 4 / np.sqrt(2 * len(drawn))
    assert scipy_stats.kstest(drawn, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4 / np.sqrt(len(drawn))


def test_uniforms_lie_strictly_between_0_and_1() -> None:
    drawn = SecretStream(b"fixed").uniform(100_000)
    assert 0 < drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 4 / np.sqrt(12 * len(drawn))
