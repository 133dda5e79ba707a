"""What a device keeps out of training stays out, however its data grows and whoever asks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.errors import ConfigError, DataError
from edge_fl.data.held_out import HeldOut, Split
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import DataSource


class Numbered(DataSource):
    """Samples that are told apart by their numbers; as many as it has grown to."""

    def __init__(self, count: int) -> None:
        self.held = self.of(count)

    def of(self, count: int) -> Samples:
        return Samples(np.arange(count, dtype=np.float32)[:, None], np.arange(count, dtype=np.int64))

    def samples(self) -> Samples:
        return self.held


def parts(split: Split) -> tuple[set[int], set[int]]:
    return set(split.train.y.tolist()), set(split.test.y.tolist())


@given(st.integers(1, 200), st.integers(0, 200), st.floats(0, 0.9), st.floats(0, 0.1), st.text("ab-", min_size=1))
def test_a_test_sample_stays_one(count: int, more: int, share: float, wider: float, client: str) -> None:
    source = Numbered(count)
    try:
        train, test = parts(HeldOut(source, share, client).split())
    except DataError:
        return
    assert not train & test
    assert train | test == set(range(count))
    source.held = source.of(count + more)
    later = HeldOut(source, share, client).split()  # as after a restart
    assert parts(later)[1] & set(range(count)) == test
    assert (np.diff(later.train.y) > 0).all()
    assert (np.diff(later.test.y) > 0).all()
    try:
        assert test <= parts(HeldOut(source, share + wider, client).split())[1]
    except DataError:
        return


def test_a_share_is_what_it_says_and_each_client_s_own() -> None:
    source = Numbered(10_000)
    first, second = (parts(HeldOut(source, 0.2, client).split())[1] for client in ("client-0", "client-1"))
    assert len(first) == pytest.approx(2000, abs=150)
    assert len(first & second) == pytest.approx(400, abs=80)
    assert sorted(first)[:8] == [7, 10, 16, 19, 29, 32, 33, 50]  # whoever draws otherwise draws another split


def test_data_that_is_the_same_is_divided_once() -> None:
    source = Numbered(50)
    held_out = HeldOut(source, 0.5, "a")
    before = held_out.split()
    assert held_out.split() is before
    source.held = source.of(51)
    assert held_out.split() is not before


@pytest.mark.parametrize("share", [0.0, 0.001])
def test_nothing_held_out_is_the_very_data(share: float) -> None:
    source = Numbered(5)
    split = HeldOut(source, share, "a").split()
    assert split.train is source.held
    assert split.sizes == (5, 0)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.1, float("nan"), float("inf")])
def test_what_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"is in \[0, 1\), not .*; change --test-share"):
        HeldOut(Numbered(5), share, "a")


def test_something_must_be_left_to_train_on() -> None:
    with pytest.raises(DataError, match="leaves none of the 5 samples to train on; lower --test-share"):
        HeldOut(Numbered(5), 0.999, "a").split()
