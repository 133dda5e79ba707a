"""The stacked trainer against the runtime one, client by client, for models, methods and optimisers of every kind."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from device_sim.simulation import stack
from device_sim.simulation.settings import Population, TrainerSettings, World
from device_sim.simulation.stacked_program import StepGraph
from device_sim.simulation.whole_model import ResidentModel
from edge_fl.core.bundle import TENSOR, Bundle
from edge_fl.core.errors import ConfigError, RuntimeMissingError
from edge_fl.core.inputs import Input
from edge_fl.methods.base import method_names
from exporter.export import Target, export_bundle
from tests.device_sim.stacked_steps import (
    MODELS,
    PARAMETERS,
    RUNTIME,
    assert_close,
    convolutional,
    step_bundle,
    step_settings,
    trained,
)

ALWAYS = ("fedavg", "fedbiad", "fjord+kd", "heterofl", "vardrop", "hetlora")
"""Methods whose steps, patterns or tensors are of a kind each; the others train one of these kinds."""


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.matrix) for name in method_names()],
)
def test_a_round_of_every_method_is_that_of_the_runtime(
    torch_bundle: Bundle, adapter_bundle: Bundle, tmp_path: Path, method: str
) -> None:
    settings = {"method": method, "parameters": PARAMETERS.get(method, {})}
    bundle = adapter_bundle if method in ("hetlora", "flexlora") else torch_bundle
    expected = trained(bundle, tmp_path / "runtime", RUNTIME, **settings)
    assert_close(expected, trained(bundle, tmp_path / "stacked", TrainerSettings("stacked"), **settings))
    assert any(np.abs(expected[name] - array).max() > 1e-3 for name, array in bundle.weights().items())


IN_TURN = ("sgd-recurrent", "adam-mlp", "momentum-mlp", "sgd-conv", "adam-conv", "distil-conv", "vardrop-conv")
"""What another model or test shows of an optimiser, a layer or a variant, too: in make test-all."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.matrix if name in IN_TURN else ()) for name in MODELS]
)
def test_every_kind_of_step_is_that_of_the_runtime(tmp_path: Path, name: str) -> None:
    bundle, settings = step_bundle(name, tmp_path / "bundle"), step_settings(name)
    expected = trained(bundle, tmp_path / "runtime", RUNTIME, **settings)
    assert_close(expected, trained(bundle, tmp_path / "stacked", TrainerSettings("stacked"), **settings))
    assert any(np.abs(expected[key] - array).max() > 1e-3 for key, array in bundle.weights().items())


@pytest.mark.parametrize(
    "name", ["sgd-conv", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("adam-conv", "distil-conv"))]
)
def test_a_stack_of_convolutions_is_that_of_the_runtime(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA; on a CPU the trainer takes them one by one."""
    monkeypatch.setattr(StepGraph, "convolves", lambda *_: False)
    test_every_kind_of_step_is_that_of_the_runtime(tmp_path, name)


@pytest.mark.parametrize(
    "name",
    [
        "per-width-conv",
        *(pytest.param(name, marks=pytest.mark.matrix) for name in ("noise-mlp", "sgd-recurrent", "vardrop-conv")),
    ],
)
def test_models_that_stay_on_an_accelerator_are_trained_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What is copied, gathered and put back there, tried on the CPU: the same bits."""
    bundle, settings = step_bundle(name, tmp_path / "bundle"), step_settings(name)
    expected = trained(bundle, tmp_path / "host", TrainerSettings("stacked"), **settings)
    monkeypatch.setattr(stack, "whole_model", ResidentModel)
    found = trained(bundle, tmp_path / "resident", TrainerSettings("stacked"), **settings)
    assert all(found[key].tobytes() == expected[key].tobytes() for key in expected)


def test_a_simulation_is_the_same_every_time(torch_bundle: Bundle, tmp_path: Path) -> None:
    one, other = (
        trained(torch_bundle, tmp_path / str(i), TrainerSettings("stacked"), method="fjord+topk", rounds=2)
        for i in range(2)
    )
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.matrix
def test_accuracies_after_many_rounds_are_the_runtimes(torch_bundle: Bundle, tmp_path: Path) -> None:
    """As close to one another as two seeds are."""
    accuracies = {}
    for trainer in (RUNTIME, TrainerSettings("stacked")):
        for seed in range(3):
            root = tmp_path / f"{trainer.kind}-{seed}"
            trained(torch_bundle, root, trainer, method="fedbiad", rounds=12, seed=seed)
            last = (root / "metrics.jsonl").read_text().splitlines()[-1]
            accuracies.setdefault(trainer.kind, []).append(msgspec.json.decode(last)["scores"]["accuracy"])
    spread = max(np.std(accuracies["runtime"], ddof=1), 0.005)
    assert abs(np.mean(accuracies["runtime"]) - np.mean(accuracies["stacked"])) <= spread
    assert min(accuracies["stacked"]) > 0.5


def test_a_bundle_without_torch_programs_is_refused_with_the_way_out(torch_bundle: Bundle, tmp_path: Path) -> None:
    manifest = msgspec.structs.replace(torch_bundle.manifest, programs={"onnx": ()})
    with pytest.raises(RuntimeMissingError, match="--runtime torch-eager too, or simulate with --trainer runtime"):
        TrainerSettings("stacked").open(Bundle(torch_bundle.root, manifest))


def test_no_large_convolution_is_stacked_on_a_cpu_but_perceptrons_are(
    torch_bundle: Bundle, tmp_path: Path
) -> None:
    target = Target("conv", "digits", Input((1, 8, 8), "float32"), 10, ("torch_eager",))
    conv_bundle = export_bundle(convolutional(), target, tmp_path / "bundle")
    for bundle, convolves in ((conv_bundle, True), (torch_bundle, False)):
        program = bundle.manifest.step_program("torch_eager", "plain", bundle.layout.sizes, 20)
        shapes = {f"{TENSOR}{tensor.name}": tensor.shape for tensor in bundle.layout.tensors}
        assert StepGraph(bundle, program, torch.device("cpu")).convolves(shapes, 20) == convolves


def test_evaluation_leaves_the_trainer_its_threads(torch_bundle: Bundle, tmp_path: Path) -> None:
    """In torch they are the whole process's."""
    programs = {"torch_eager": torch_bundle.manifest.programs["torch_eager"]}
    manifest = msgspec.structs.replace(torch_bundle.manifest, programs=programs)
    files = {name: torch_bundle.read(name) for name in manifest.files}
    trained(Bundle.save(tmp_path / "bundle", manifest, files), tmp_path / "run", TrainerSettings("stacked"))
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Population(0), "needs clients"),
        (
            lambda: Population(5, tiers=[1.0, 0.5]),
            r"'tiers' cannot be \[1\.0, 0\.5\] \(Expected `int`, got `array`\)",
        ),
        (lambda: World("wifi", online="always"), "'online' cannot be 'always'"),
        (lambda: Population(10).share(0.09), "picks none of 10"),
        (lambda: Population(10).share(1.5), r"in \(0, 1\]"),
        (lambda: TrainerSettings("quick"), "no trainer 'quick'"),
        (lambda: TrainerSettings("runtime", device="cuda"), "trains on the CPU"),
        (lambda: TrainerSettings("stacked", "onnx"), "does not train in 'onnx'; use --trainer runtime"),
        (lambda: TrainerSettings("stacked", threads=0), "at least 1 thread"),
        (lambda: TrainerSettings("stacked", processes=0), "at least 1 thread and 1 process"),
        (lambda: TrainerSettings("stacked", device="cuda", processes=2), "leave --processes out"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_share_is_not_a_victim_of_rounding() -> None:
    assert Population(100).share(0.29) == 29
