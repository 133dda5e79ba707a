from pathlib import Path

import numpy as np
import pytest
import torch

from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import BundleError
from edge_fl.core.pattern import Pattern
from edge_fl.runtimes.base import open_runtime
from exporter.limits import LIMIT
from exporter.source import Source
from tests.exporter.lower import proving

RUNTIME = "executorch_training"


@pytest.fixture(scope="module", params=["pooled"])
def proven(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Bundle]:
    return proving.exported(request.param, RUNTIME, tmp_path_factory.mktemp("et") / "bundle")


def test_models_train_as_in_torch_with_every_optimiser(proven: tuple[Source, Bundle], tmp_path: Path) -> None:
    source, bundle = proven
    assert bundle.manifest.parity[RUNTIME].steps >= 5
    for name, optimizer in proving.OPTIMIZERS.items():
        proving.prove(source, bundle, RUNTIME, optimizer, tmp_path / name)


@pytest.mark.matrix
def test_every_kind_of_train_step_is_as_in_torch(tmp_path: Path) -> None:
    bundle = proving.exported_variants("mlp", RUNTIME, tmp_path / "bundle", "noise", "distil")

    assert {program.variant for program in bundle.manifest.programs[RUNTIME]} >= {"noise", "distil"}
    assert bundle.manifest.parity[RUNTIME].weights <= LIMIT


def test_recurrent_layers_train_as_in_torch(tmp_path: Path) -> None:
    bundle = proving.exported_variants("recurrent", RUNTIME, tmp_path / "bundle", "plain")

    assert bundle.layout.sizes == {"rnn.l0": 4}
    assert bundle.manifest.parity[RUNTIME].weights <= LIMIT


def test_a_file_is_one_that_executorchs_own_training_module_and_optimiser_take(
    proven: tuple[Source, Bundle],
) -> None:
    from executorch.extension.training import _load_for_executorch_for_training_from_buffer, get_sgd_optimizer

    source, bundle = proven
    rng = np.random.default_rng(0)
    x = rng.standard_normal((proving.BATCH, *source.input.shape)).astype(np.float32)
    y, weight = rng.integers(0, 3, proving.BATCH), np.ones(proving.BATCH, np.float32)
    start = bundle.weights()
    step = open_runtime(RUNTIME, bundle).train_step(Pattern.full(source.layout), proving.BATCH)
    ours = step(start, Batch(x, y, weight), lr=0.1)

    data = bundle.read(f"{RUNTIME}/step-plain-w1000-b{proving.BATCH}.pte")
    module = _load_for_executorch_for_training_from_buffer(data)
    inputs = [torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(weight), torch.tensor(1.0)]
    module.forward_backward("forward", inputs)
    held = module.named_parameters()
    for name, tensor in held.items():
        tensor.copy_(torch.from_numpy(start[name.removeprefix("tensor.")]))
    _, loss = module.forward_backward("forward", inputs)
    get_sgd_optimizer(held, 0.1).step(module.named_gradients())

    assert float(loss) == ours.loss
    for name, tensor in held.items():
        np.testing.assert_allclose(ours.tensors[name.removeprefix("tensor.")], tensor, rtol=0, atol=1e-7)


def test_results_stay_as_they_were_when_the_program_runs_again(proven: tuple[Source, Bundle]) -> None:
    source, bundle = proven
    step = open_runtime(RUNTIME, bundle).train_step(Pattern.full(source.layout), proving.BATCH)
    shape = (proving.BATCH, *source.input.shape)
    data = Batch(np.ones(shape, np.float32), np.arange(proving.BATCH) % 3, np.ones(proving.BATCH, np.float32))
    first = step(bundle.weights(), data, lr=0.1)
    kept = {name: array.copy() for name, array in first.tensors.items()}

    second = step(first.tensors, data, lr=0.5)

    assert second.loss < first.loss
    assert all(np.array_equal(first.tensors[name], kept[name]) for name in kept)


def test_a_damaged_program_is_refused(proven: tuple[Source, Bundle], tmp_path: Path) -> None:
    source, bundle = proven
    files = {name: bundle.read(name) for name in bundle.manifest.files}
    files = {name: b"no program" * 9 if name.endswith(".pte") else data for name, data in files.items()}
    broken = open_runtime(RUNTIME, Bundle.save(tmp_path / "broken", bundle.manifest, files))

    with pytest.raises(BundleError, match="ExecuTorch cannot load"):
        broken.train_step(Pattern.full(source.layout), proving.BATCH)
