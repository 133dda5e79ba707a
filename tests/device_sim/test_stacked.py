"""The stacked trainer against the runtime one, client by client, for models, methods and optimisers of every kind."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from device_sim.simulation.stacked_program import StepGraph
from edge_fl.core.bundle import Bundle, Optimizer
from edge_fl.core.errors import ConfigError, RuntimeMissingError
from edge_fl.core.inputs import Input
from edge_fl.data.partition import IID, Kind
from edge_fl.methods.base import method_names
from edge_fl.runs.config import RunConfig
from exporter.export import Target, export_bundle
from exporter.zoo.mlp import mlp

RUNTIME = TrainerSettings("runtime")


def trained(
    bundle: Bundle, root: Path, trainer: TrainerSettings, kind: Kind = IID, **more
) -> dict[str, np.ndarray]:
    settings = {"method": "fedavg", "parameters": {}, "rounds": 1, "clients_per_round": 7, "local_steps": 9}
    settings |= {"lr": 0.1, "seed": 3, **more}
    config = RunConfig(run="test", batch=20, **settings)
    simulation = Simulation(
        bundle=bundle,
        config=config,
        population=Population(9, tiers=2, kind=kind),
        trainer=trainer,
        root=root,
        observer=Observer(),
    )
    return load_file(simulation.run().weights)


def assert_close(one: dict[str, np.ndarray], other: dict[str, np.ndarray], within: float = 1e-5) -> None:
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, rtol=0, atol=within, err_msg=name)


# Adam makes a whole step of a change that rounding alone tells from none: its eps is here what FedAdam has.
PARAMETERS = {"vardrop": {"lr": 0.01, "rate_lr": 0.5, "eps": 0.001, "threshold": -4.0}}


@pytest.mark.parametrize("method", method_names())
def test_a_round_of_every_method_is_that_of_the_runtime(
    torch_bundle: Bundle, adapter_bundle: Bundle, tmp_path: Path, method: str
) -> None:
    settings = {"method": method, "parameters": PARAMETERS.get(method, {})}
    bundle = adapter_bundle if method in ("hetlora", "flexlora") else torch_bundle
    expected = trained(bundle, tmp_path / "runtime", RUNTIME, **settings)
    assert_close(expected, trained(bundle, tmp_path / "stacked", TrainerSettings("stacked"), **settings))
    assert any(np.abs(expected[name] - array).max() > 1e-3 for name, array in bundle.weights().items())


class Tied(nn.Module):
    """A product of two parameters: each one's gradient is the other, which the step writes over."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.layer = nn.Linear(64, 10)
        self.factor, self.other = (nn.Parameter(torch.randn(10)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.flat(x)) + self.factor * self.other


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )


class Recurrent(nn.Module):
    """A picture's rows in order."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x.flatten(1, 2))
        return self.out(states[:, -1])


PLAIN, ADAM = Optimizer(), Optimizer("adam", weight_decay=0.01, clip=0.5)
MOMENTUM = Optimizer(momentum=0.9, weight_decay=0.01)
MODELS = {
    "sgd-conv": (convolutional, PLAIN, "plain"),
    "adam-conv": (convolutional, ADAM, "plain"),
    "adam-mlp": (lambda: mlp(inputs=64, hidden=6, classes=10), ADAM, "plain"),
    "momentum-mlp": (lambda: mlp(inputs=64, hidden=6, classes=10), MOMENTUM, "plain"),
    "sgd-tied": (Tied, PLAIN, "plain"),
    "noise-mlp": (lambda: mlp(inputs=64, hidden=6, classes=10), PLAIN, "noise"),
    "per-width-conv": (convolutional, PLAIN, "plain"),
    "sgd-recurrent": (Recurrent, PLAIN, "plain"),
    "distil-conv": (convolutional, MOMENTUM, "distil"),
    "masked-mlp": (lambda: mlp(inputs=64, hidden=6, classes=10), PLAIN, "plain"),
    "vardrop-conv": (convolutional, PLAIN, "vardrop"),
}
SETTINGS = {
    "per-width-conv": {"method": "fjord", "parameters": {"widths": [1000, 500]}},
    "distil-conv": {"method": "fjord+kd", "parameters": {"widths": [1000, 500, 400], "alpha": 0.6}},
    "vardrop-conv": {"method": "vardrop", "parameters": {"server": "average"}, "rounds": 2},
    "sgd-recurrent": {"method": "feddrop", "parameters": {}, "rounds": 1},
    "masked-mlp": {"method": "heterofl", "parameters": {}, "kind": Kind.parse("labels=2")},
}
"""Of those that FedBIAD does not train, or not in a short time."""


IN_TURN = ("adam-mlp", "momentum-mlp", "sgd-conv", "adam-conv", "distil-conv", "vardrop-conv")
"""What another model or test shows of an optimiser, a layer or a variant, too: in make test-all."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.matrix if name in IN_TURN else ()) for name in MODELS]
)
def test_every_kind_of_step_is_that_of_the_runtime(tmp_path: Path, name: str) -> None:
    build, optimizer, variant = MODELS[name]
    torch.manual_seed(0)
    target = Target(
        name,
        "digits",
        Input((1, 8, 8), "float32"),
        10,
        ("onnx", "torch_eager"),
        optimizer=optimizer,
        variants=tuple({"plain", variant}),
        batch_norm="per-width" if name in ("per-width-conv", "distil-conv") else "tracked",
        loss="masked_cross_entropy" if name == "masked-mlp" else "cross_entropy",
    )
    bundle = export_bundle(build(), target, tmp_path / "bundle")
    fedbiad = {"method": "fedbiad", "parameters": {"variance": 0.01 if variant == "noise" else 0.0, "tau": 1}}
    settings = dict(SETTINGS.get(name, fedbiad))
    if optimizer is ADAM:
        settings["lr"] = 0.003
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
    monkeypatch.setattr(StepGraph, "convolves", False)
    test_every_kind_of_step_is_that_of_the_runtime(tmp_path, name)


def test_a_simulation_is_the_same_every_time(torch_bundle: Bundle, tmp_path: Path) -> None:
    one, other = (
        trained(torch_bundle, tmp_path / str(i), TrainerSettings("stacked"), method="fjord+topk", rounds=2)
        for i in range(2)
    )
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


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


def test_no_convolution_is_stacked_on_a_cpu_but_perceptrons_are(torch_bundle: Bundle, tmp_path: Path) -> None:
    target = Target("conv", "digits", Input((1, 8, 8), "float32"), 10, ("torch_eager",))
    conv_bundle = export_bundle(convolutional(), target, tmp_path / "bundle")
    for bundle, convolves in ((conv_bundle, True), (torch_bundle, False)):
        program = bundle.manifest.step_program("torch_eager", "plain", bundle.layout.sizes, 20)
        assert StepGraph(bundle, program).convolves == convolves


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
