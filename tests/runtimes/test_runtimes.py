import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import EdgeFLError, RuntimeMissingError
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.runtimes.base import RUNTIMES, Runtime, open_runtime

NAMES = ("onnx", "executorch", "torch_eager")
WIDTHS = (1000, 500)


@pytest.fixture(params=NAMES)
def runtime(request: pytest.FixtureRequest, digits_bundle: Bundle) -> Runtime:
    return open_runtime(request.param, digits_bundle)


def batch(samples: int = 20, real: int | None = None, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    weight = (np.arange(samples) < (samples if real is None else real)).astype(np.float32)
    return Batch(rng.random((samples, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, samples), weight)


def trained(runtime: Runtime, dropouts: tuple[int, ...]) -> dict[str, NDArray[np.float32]]:
    weights = {name: array.copy() for name, array in runtime.bundle.weights().items()}
    for index, dropout in enumerate(dropouts):
        selection = Selection.of(pattern := Pattern.seeded(runtime.bundle.layout, dropout, index), "units")
        step = runtime.train_step(pattern, 20)
        data = batch(real=20 - index, seed=index)
        done = step(selection.gather(weights), data, lr=0.5, scale=1000 / (1000 - dropout))
        selection.scatter(done.tensors, weights)
    return weights


def test_every_runtime_trains_to_the_same_weights(digits_bundle: Bundle) -> None:
    dropouts = tuple(1000 - width for width in WIDTHS * 2)
    results = [trained(open_runtime(name, digits_bundle), dropouts) for name in NAMES]

    for name, array in results[0].items():
        assert not np.array_equal(array, digits_bundle.weights()[name])
        for other in results[1:]:
            np.testing.assert_allclose(other[name], array, rtol=0, atol=1e-5)


def test_what_a_runtime_raises_in_a_step_is_told_in_a_sentence(runtime: Runtime) -> None:
    step, weights = runtime.train_step(Pattern.full(runtime.bundle.layout), 20), dict(runtime.bundle.weights())
    name = next(iter(weights))
    weights[name] = weights[name][..., :3]

    with pytest.raises(EdgeFLError, match=r"step-plain"):
        step(weights, batch(), lr=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_a_runtime_goes_with_its_last_reference_and_not_when_garbage_is_collected(
    name: str, digits_bundle: Bundle
) -> None:
    gc.disable()  # ExecuTorch changes its threads only when no program is left, at whatever moment that is asked
    try:
        opened = open_runtime(name, digits_bundle)
        opened.evaluator()(digits_bundle.weights(), batch())
        opened.train_step(Pattern.full(opened.bundle.layout), 20)
        gone = weakref.ref(opened)
        del opened
        assert gone() is None
    finally:
        gc.enable()


def test_a_padded_sample_counts_for_nothing(runtime: Runtime) -> None:
    step = runtime.train_step(Pattern.full(runtime.bundle.layout), 20)
    data, weights = batch(real=13), runtime.bundle.weights()
    garbage = Batch(data.x.copy(), data.y, data.weight)
    garbage.x[13:] = 7

    done = step(weights, data, lr=0.1)
    same = step(weights, garbage, lr=0.1)

    assert done.loss == pytest.approx(same.loss, abs=1e-6)
    assert all(np.allclose(done.tensors[name], same.tensors[name], rtol=0, atol=1e-7) for name in weights)


def test_results_stay_as_they_were_when_the_program_runs_again(runtime: Runtime) -> None:
    step = runtime.train_step(Pattern.full(runtime.bundle.layout), 20)
    first = step(runtime.bundle.weights(), batch(), lr=0.1).tensors
    kept = {name: array.copy() for name, array in first.items()}

    step(first, batch(seed=1), lr=0.5)

    assert all(np.array_equal(first[name], kept[name]) for name in kept)


def test_evaluation_takes_any_number_of_samples_and_leaves_out_padding(runtime: Runtime) -> None:
    evaluate, weights = runtime.evaluator(), runtime.bundle.weights()
    data = batch(450, real=430)

    loss, outputs = evaluate(weights, data)
    shorter, fewer = evaluate(weights, Batch(data.x[:430], data.y[:430], data.weight[:430]))

    assert outputs.shape == (450, 10)
    np.testing.assert_allclose(outputs[:430], fewer, rtol=0, atol=1e-6)
    assert loss == pytest.approx(shorter, abs=1e-6)


def test_weights_that_may_not_be_written_are_taken(runtime: Runtime) -> None:
    weights = runtime.bundle.weights()
    for array in weights.values():
        array.flags.writeable = False

    runtime.evaluator()(weights, batch())


@pytest.mark.parametrize("name", ["onnx", "torch_eager"])
def test_free_widths_train_a_single_unit_and_a_single_sample(name: str, digits_bundle: Bundle) -> None:
    layout = digits_bundle.layout
    pattern = Pattern(layout, np.arange(layout.units) % 32 == 0)
    selection = Selection.of(pattern, "units")

    step = open_runtime(name, digits_bundle).train_step(pattern, 1)
    done = step(selection.gather(digits_bundle.weights()), batch(1), lr=0.1)

    assert np.isfinite(done.loss)
    assert done.tensors["3.weight"].shape == (1, 1)


def test_a_width_that_the_bundle_does_not_hold_is_refused_with_those_it_does(digits_bundle: Bundle) -> None:
    opened = open_runtime("executorch", digits_bundle)

    with pytest.raises(
        RuntimeMissingError, match=r"1: 31.*it holds 'plain' of 1: 32, 3: 32 at batch 20; 'plain' of 1: 16"
    ):
        opened.train_step(Pattern.prefix(digits_bundle.layout, 960), 20)
    with pytest.raises(RuntimeMissingError, match="batch 32"):
        opened.train_step(Pattern.full(opened.bundle.layout), 32)


def test_a_runtime_of_which_nothing_is_known_is_refused(digits_bundle: Bundle) -> None:
    assert RUNTIMES.names() == ["executorch", "executorch_training", "onnx", "ort_training", "torch_eager"]
    with pytest.raises(RuntimeMissingError, match="no runtime 'tflite'"):
        open_runtime("tflite", digits_bundle)


def test_the_onnx_device_path_imports_neither_torch_nor_onnx(digits_bundle: Bundle) -> None:
    code = f"""
import sys
from pathlib import Path
import numpy as np
from edge_fl.core.bundle import Bundle
from edge_fl.core.pattern import Pattern
from edge_fl.core.batch import Batch
from edge_fl.runtimes.base import open_runtime
from edge_fl.core.selection import Selection
bundle = Bundle.load(Path({str(digits_bundle.root)!r}), runtime="onnx")
pattern = Pattern.seeded(bundle.layout, 500, 1)
full = {{t.name: np.zeros(t.shape, np.float32) for t in bundle.layout.tensors}}
batch = Batch(np.zeros((20, 1, 8, 8), np.float32), np.zeros(20, np.int64), np.ones(20, np.float32))
runtime = open_runtime("onnx", bundle)
loss = runtime.train_step(pattern, 20)(Selection.of(pattern, "units").gather(full), batch, lr=0.1).loss
assert abs(loss - np.log(10)) < 1e-5, loss
foreign = {{"torch", "onnx", "safetensors"}} & set(sys.modules)
assert not foreign, foreign
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
