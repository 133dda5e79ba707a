"""The last step before a private update's frame: its norm is bounded, and it tells nothing else."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edge_fl.core.bundle import Bundle
from edge_fl.core.content import ref_of
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Block, Layout, Segment, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.data.registry import load_dataset
from edge_fl.measure.models import mlp_layout, random_weights
from edge_fl.runtimes.base import open_runtime
from edge_fl.training.clipping import clipped, noised, norm_of
from edge_fl.training.update import make_update
from edge_fl.wire.frame import Frame, Header, decode_frame, encode_frame
from edge_fl.wire.messages import Clipping, Task

LAYOUT = mlp_layout(5, 8, 6, 3)
SIZE = sum(tensor.size for tensor in LAYOUT.tensors)
ENTRIES = st.floats(min_value=-1e6, max_value=1e6, width=32)


def by_tensor(vector: np.ndarray) -> Weights:
    starts = np.cumsum([0, *(tensor.size for tensor in LAYOUT.tensors)])
    return {
        tensor.name: vector[start : start + tensor.size].reshape(tensor.shape)
        for tensor, start in zip(LAYOUT.tensors, starts, strict=False)
    }


@given(arrays(np.float32, SIZE, elements=ENTRIES), st.floats(1e-3, 1e3), st.sampled_from([0, 300, 500]))
def test_no_update_is_longer_than_the_clip(vector: np.ndarray, most: float, dropout: int) -> None:
    pattern = Pattern.seeded(LAYOUT, dropout, key=3)
    selection = Selection.of(pattern, "units")
    delta = selection.gather(by_tensor(vector))
    made, within = clipped(selection, delta, most)
    before, after = (norm_of(selection, each) for each in (delta, made))
    assert after <= most
    assert within == (before <= most)
    if within:
        assert all(np.array_equal(made[name], delta[name]) for name in delta)
    else:
        assert after >= most * (1 - 1e-6)


def test_statistics_stay_and_dropped_rows_do_not_count() -> None:
    one = Segment(None, 1, 2)
    axes = {"shape": (4,), "rows": ((Segment("h", 1, 1),),), "units": ((Segment("h", 1, 1),),)}
    layout = Layout(
        (Block("h", 4),),
        (Tensor("w", **axes), Tensor("mean", shape=(2,), rows=((one,),), units=((one,),), role="statistic")),
    )
    selection = Selection.of(Pattern.prefix(layout, 500), "units")
    delta = {"w": np.array([3, 4, 1e9, -1e9], np.float32), "mean": np.array([7, 8], np.float32)}
    made, within = clipped(selection, selection.gather(delta), 5.0)
    assert within
    assert not made["mean"].any()
    assert np.array_equal(made["w"], [3, 4])


def test_local_noise_has_its_deviation_and_repeats_for_the_same_update_alone() -> None:
    selection = Selection.of(Pattern.full(mlp_layout(784, 64, 64, 10)), "units")
    delta = {name: 0 * array for name, array in random_weights(selection.layout, 0).items()}
    made, same = (noised(selection, delta, 0.25, b"key") for _ in range(2))
    flat = np.concatenate([array.reshape(-1) for array in made.values()])
    assert abs(flat.std() / 0.25 - 1) < 4 / np.sqrt(2 * len(flat))
    assert abs(flat.mean()) < 4 * 0.25 / np.sqrt(len(flat))
    assert all(np.array_equal(made[name], same[name]) for name in made)
    other = noised(selection, {name: array + np.float32(1e-3) for name, array in delta.items()}, 0.25, b"key")
    moved = np.concatenate([(other[n] - made[n]).reshape(-1) for n in made])
    assert moved.std() > 0.3  # of two draws, not of one


@pytest.fixture
def start(digits_bundle: Bundle) -> bytes:
    layout = digits_bundle.layout
    header = Header("model", run="r", round=1, version=0, layout=layout.digest, method="fedavg")
    return encode_frame(header, Pattern.full(layout), digits_bundle.weights())


def asked(start: bytes, **others: Any) -> Task:
    known = {"method": "fedavg", "parameters": {}, "steps": 5, "batch": 20, "lr": 0.1, "seed": 0, "tier": 0}
    return Task(run="r", round=1, accepted=0, model=ref_of(start), **(known | others))


@pytest.mark.parametrize("method", ["fedavg+dgc", "fedavg+fedpaq"])
def test_a_device_lets_nothing_change_its_update_after_the_clip(
    digits_bundle: Bundle, start: bytes, method: str
) -> None:
    task, samples = asked(start, method=method, clipping=Clipping(1.0)), load_dataset("digits").train
    runtime, model = open_runtime("onnx", digits_bundle, threads=1), decode_frame(start, digits_bundle.layout)
    with pytest.raises(ConfigError, match="would change it after the clip"):
        make_update(task, client="c", model=model, runtime=runtime, samples=samples, state={})


@pytest.mark.parametrize("most", [0.01, 100.0])
def test_a_private_update_tells_its_norm_neither_samples_nor_loss(
    digits_bundle: Bundle, start: bytes, most: float
) -> None:
    layout, samples, task = digits_bundle.layout, load_dataset("digits").train.take(np.arange(100)), asked(start)

    def update_of(task: Task) -> Frame:
        runtime = open_runtime("onnx", digits_bundle, threads=1)
        model = decode_frame(start, layout)
        made = make_update(task, client="c", model=model, runtime=runtime, samples=samples, state={})
        return decode_frame(made.frame, layout)

    open_, private = update_of(task), update_of(msgspec.structs.replace(task, clipping=Clipping(most, tell=True)))
    assert (open_.header.samples, open_.header.unclipped) == (100, msgspec.UNSET)
    assert (private.header.samples, private.header.loss) == (1, 0.0)
    assert private.header.unclipped is (most > 1)
    assert norm_of(private.selection, private.values) <= most
    loud, again = (update_of(msgspec.structs.replace(task, clipping=Clipping(most, noise=1.0))) for _ in range(2))
    assert loud.header.unclipped is msgspec.UNSET
    spread = np.concatenate([(loud.values[n] - private.values[n]).reshape(-1) for n in private.values])
    assert abs(spread.std() - 1) < 0.1
    # Without a secret of the device each visit draws its own.
    assert any(not np.array_equal(loud.values[name], again.values[name]) for name in loud.values)


def test_two_noises_of_one_update_have_nothing_in_common(digits_bundle: Bundle, start: bytes) -> None:
    """Whoever asks the same update of a device in another run, or with another noise or clip, learns nothing of it."""
    layout, samples = digits_bundle.layout, load_dataset("digits").train.take(np.arange(100))
    runtime, model = open_runtime("onnx", digits_bundle, threads=1), decode_frame(start, layout)

    def values(run: str, clipping: Clipping) -> np.ndarray:
        task = msgspec.structs.replace(asked(start), run=run, clipping=clipping)
        made = make_update(
            task, client="c", model=model, runtime=runtime, samples=samples, state={}, secret=bytes(32)
        )
        found = decode_frame(made.frame, layout).values
        return np.concatenate([found[tensor.name].reshape(-1) for tensor in layout.parameters])

    clean = values("r", Clipping(100.0))
    first = values("r", Clipping(100.0, noise=1.0))
    assert np.array_equal(first, values("r", Clipping(100.0, noise=1.0)))
    for other in (values("r", Clipping(100.0, noise=2.0)), values("r", Clipping(90.0, noise=1.0))):
        assert abs(np.corrcoef(first - clean, other - clean)[0, 1]) < 0.1
    model = decode_frame(
        encode_frame(msgspec.structs.replace(model.header, run="s"), model.pattern, model.values), layout
    )
    assert abs(np.corrcoef(first - clean, values("s", Clipping(100.0, noise=1.0)) - clean)[0, 1]) < 0.1
