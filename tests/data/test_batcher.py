import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.batch import Batch
from edge_fl.core.errors import ConfigError, DataError
from edge_fl.core.randomness import Stream
from edge_fl.data.batcher import batch_rows, batches, eval_batches
from edge_fl.data.registry import Samples


def numbered(n: int) -> Samples:
    """Samples told apart by their label, none of them like padding."""
    y = np.arange(1, n + 1, dtype=np.int64)
    return Samples(np.repeat(y.astype(np.float32), 6).reshape(n, 2, 3), y)


def real_labels(batch: Batch) -> list[int]:
    """The labels of the samples in a batch, after checking its form and its padding."""
    size = len(batch.y)
    assert [array.dtype.name for array in (batch.x, batch.y, batch.weight)] == ["float32", "int64", "float32"]
    assert batch.x.shape == (size, 2, 3)
    assert batch.weight.shape == (size,)
    held = int(batch.weight.sum())
    assert batch.weight.tolist() == [1.0] * held + [0.0] * (size - held)
    assert batch.x.tolist() == np.broadcast_to(batch.y[:, None, None], (size, 2, 3)).tolist()
    assert set(batch.y[held:]) <= {batch.y[0]}
    return [int(label) for label in batch.y[:held]]


@given(n=st.integers(1, 30), size=st.integers(1, 12), steps=st.integers(0, 25), key=st.integers(0, 2**64 - 1))
def test_epochs_of_fresh_permutations_follow_one_another(n: int, size: int, steps: int, key: int) -> None:
    given_out = list(batches(numbered(n), steps=steps, size=size, stream=Stream(key)))
    assert len(given_out) == steps
    assert all(len(batch.y) == size for batch in given_out)
    per_epoch, stream = -(-n // size), Stream(key)
    for start in range(0, steps, per_epoch):
        epoch = given_out[start : start + per_epoch]
        labels = [label for batch in epoch for label in real_labels(batch)]
        order = (stream.permutation(n) + 1).tolist()
        assert labels == order[: len(labels)]
        assert len(labels) == n or len(epoch) < per_epoch


def test_only_the_tail_of_an_epoch_is_padded() -> None:
    sizes = [len(real_labels(b)) for b in batches(numbered(7), steps=7, size=3, stream=Stream(1))]
    assert sizes == [3, 3, 1, 3, 3, 1, 3]


@given(st.integers(1, 30), st.integers(1, 12))
def test_evaluation_sees_every_sample_once_in_order(n: int, size: int) -> None:
    given_out = list(eval_batches(numbered(n), size))
    assert [label for batch in given_out for label in real_labels(batch)] == list(range(1, n + 1))
    assert all(len(batch.y) == size for batch in given_out)
    assert len(given_out) == -(-n // size)


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_without_samples_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match="at least 1 sample"):
        next(batches(numbered(3), steps=1, size=size, stream=Stream(0)))
    with pytest.raises(ConfigError, match="at least 1 sample"):
        next(eval_batches(numbered(3), size))


def test_no_data_is_refused() -> None:
    with pytest.raises(DataError, match="no sample"):
        next(batches(numbered(0), steps=1, size=2, stream=Stream(0)))
    with pytest.raises(DataError, match="no sample"):
        next(eval_batches(numbered(0), 2))


@given(n=st.integers(1, 9), size=st.integers(1, 5))
def test_tokens_stay_tokens_and_a_padded_sequence_weighs_nothing(n: int, size: int) -> None:
    x = np.arange(1, 3 * n + 1).reshape(n, 3)
    samples = Samples(x, x + 1, np.arange(n))
    for start, batch in zip(range(0, n, size), eval_batches(samples, size), strict=True):
        held = min(size, n - start)
        assert (batch.x.dtype, batch.y.dtype, batch.x.shape, batch.y.shape) == (
            np.int64,
            np.int64,
            (size, 3),
            (size, 3),
        )
        assert batch.x[:held].tolist() == x[start : start + held].tolist()
        assert batch.y[:held].tolist() == (x[start : start + held] + 1).tolist()
        assert batch.weight.tolist() == [1.0] * held + [0.0] * (size - held)
        assert batch.x[held:].tolist() == [batch.x[0].tolist()] * (size - held)
        assert batch.y[held:].tolist() == [batch.y[0].tolist()] * (size - held)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 9])
def test_whole_batches_hold_no_padding(n: int) -> None:
    given_out = list(batches(numbered(n), steps=8, size=3, stream=Stream(1), whole=True))

    assert all(batch.weight.all() for batch in given_out)
    if n >= 3:
        epochs = [given_out[i : i + n // 3] for i in range(0, 8 - n // 3, n // 3)]
        for epoch in epochs:
            labels = np.concatenate([real_labels(batch) for batch in epoch])
            assert len(set(labels)) == len(labels)
    assert {int(label) for batch in given_out for label in real_labels(batch)} == set(range(1, n + 1))


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1)])
def test_batches_are_written_into_memory_however_samples_lie(axes: tuple[int, ...]) -> None:
    samples = numbered(7)
    moved = Samples(samples.x.transpose(axes), samples.y)
    x, y = np.empty((3, *moved.x.shape[1:]), dtype=np.float32), np.empty(3, dtype=moved.y.dtype)
    weight = np.empty(3, dtype=np.float32)
    for drawn in batch_rows(moved, steps=5, size=3, stream=Stream(1)):
        drawn.into(moved, x, y, weight)
        batch = drawn.of(moved)
        np.testing.assert_array_equal(x, batch.x)
        np.testing.assert_array_equal(y, batch.y)
        np.testing.assert_array_equal(weight, batch.weight)
    assert moved.take(np.arange(7)).x.flags.c_contiguous
