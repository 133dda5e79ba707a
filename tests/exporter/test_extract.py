import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import CLASS_INDEX, SCHEMA, WEIGHTS, Bundle, Manifest
from edge_fl.core.errors import BundleError, ConfigError, EdgeFLError, ParityError, RunError, UnsupportedModelError
from edge_fl.core.inputs import Input
from edge_fl.data.registry import load_dataset
from edge_fl.runs.config import RunConfig
from exporter.accept import Fit, example_inputs
from exporter.adapt import adapt
from exporter.commands.extract import extract as command
from exporter.derive import derive
from exporter.export import Target, export_bundle
from exporter.extract.extract import Trained, Wanted, extract
from exporter.extract.forward import FORWARD, save_forward
from exporter.forward import build_evaluation
from exporter.losses import find_loss
from exporter.lower import Request, lower_for
from exporter.source import Source
from exporter.zoo import mlp

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
Run = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def source(model: nn.Module, taken: Input, classes: int) -> Source:
    return Source(
        module=adapt(model).train(),
        original=model,
        layout=derive(model, example_inputs(Fit(taken, (), classes), 3)).layout,
        scaled=(),
        loss=find_loss("cross_entropy"),
        input=taken,
        target=CLASS_INDEX,
        classes=classes,
    )


def with_forward(bundle: Bundle, model: nn.Module, root: Path) -> Bundle:
    """A copy of a bundle with the forward program of ``model``."""
    manifest = bundle.manifest
    files = {name: bundle.read(name) for name in manifest.files}
    files[FORWARD] = save_forward(source(model, manifest.input, manifest.classes))
    return Bundle.save(root, manifest, files)


def untrainable(model: nn.Module, taken: Input, classes: int, root: Path) -> Bundle:
    """A bundle without train steps, which take their time to trace."""
    wanted = source(model, taken, classes)
    request = Request((), build_evaluation(wanted), (1000,), 20)
    lowered = lower_for(("torch_eager",), request, lambda _: None)["torch_eager"]
    manifest = Manifest(
        schema=SCHEMA,
        name="model",
        dataset="made-up",
        classes=classes,
        input=taken,
        target=CLASS_INDEX,
        loss="cross_entropy",
        layout=wanted.layout,
        programs={"torch_eager": tuple(program for program, _ in lowered)},
        parity={},
        tools={},
    )
    held = model.state_dict()
    weights = safetensors.numpy.save({t.name: held[t.name].numpy() for t in wanted.layout.tensors})
    files = {program.file: data for program, data in lowered}
    return Bundle.save(root, manifest, {**files, WEIGHTS: weights, FORWARD: save_forward(wanted)})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    root, model = tmp_path_factory.mktemp("bundle"), mlp.digits()
    target = Target(
        "digits-mlp",
        "digits",
        Input((1, 8, 8), "float32"),
        10,
        ("torch_eager",),
        widths=(1000,),
        metadata={"origin": "the export", "note": "overruled"},
    )
    return with_forward(export_bundle(model, target, root), model, root)


@pytest.fixture(scope="module")
def run(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two rounds."""
    root = tmp_path_factory.mktemp("runs") / "run"
    config = RunConfig(
        run="two-rounds",
        method="fedavg",
        parameters={},
        rounds=2,
        clients_per_round=3,
        local_steps=20,
        batch=20,
        lr=0.2,
        seed=0,
    )
    clients, trainer = Population(3), TrainerSettings("stacked")
    Simulation(
        bundle=bundle, config=config, population=clients, trainer=trainer, root=root, observer=Observer()
    ).run()
    return root


@pytest.fixture(scope="module")
def finished(run: Path, bundle: Bundle) -> dict[str, Any]:
    """What the command is given of a run."""
    return {"run": run, "bundle": bundle.root}


@pytest.fixture
def names(tmp_path: Path) -> Path:
    path = tmp_path / "names.txt"
    path.write_text("\n".join(NAMES) + "\n")
    return path


def opened(path: Path) -> Run:
    """A delivered file in nothing but the runtime that it is for."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda x: session.run(None, {"x": x})[0]  # type: ignore[no-any-return]
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()
        return lambda x: module(torch.from_numpy(x)).numpy()  # type: ignore[no-any-return]
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(path)
    method = program.load_method("forward")
    assert method is not None

    def execute(x: NDArray[np.float32]) -> NDArray[np.float32]:
        assert program is not None
        return np.concatenate([method.execute([torch.from_numpy(x[i : i + 1])])[0].numpy() for i in range(len(x))])

    return execute


def first_units(weights: dict[str, NDArray[np.float32]], units: int) -> nn.Module:
    """The digits' MLP of the first units of each layer, cut by hand."""
    inner = slice(units)
    kept = {
        "1.weight": weights["1.weight"][inner],
        "1.bias": weights["1.bias"][inner],
        "3.weight": weights["3.weight"][inner, inner],
        "3.bias": weights["3.bias"][inner],
        "5.weight": weights["5.weight"][:, inner],
        "5.bias": weights["5.bias"],
    }
    model = mlp.mlp(inputs=64, hidden=units, classes=10)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in kept.items()})
    return model


def answers(model: nn.Module, x: NDArray[np.float32]) -> NDArray[np.float32]:
    with torch.no_grad():
        return model.eval()(torch.from_numpy(x)).numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("runtime", "width", "units"),
    [
        *(("onnx", 1.0, 32), ("executorch", 0.4, 13), ("torch", 1.0, 32)),
        *(
            pytest.param("onnx", 0.4, 13, marks=pytest.mark.matrix),
            pytest.param("torch", 0.4, 13, marks=pytest.mark.matrix),
        ),
        pytest.param("executorch", 1.0, 32, marks=pytest.mark.matrix),
    ],
)
def test_a_delivered_model_predicts_what_torch_predicts_with_the_runs_first_units(
    runtime: str, width: float, units: int, finished: dict[str, Any], tmp_path: Path
) -> None:
    command(**finished, runtime=runtime, width=width, untrained_width=True, output=tmp_path)

    (written,) = tmp_path.glob("model.*.json")
    card = json.loads(written.read_text())
    file = tmp_path / card["file"]
    assert written.name == f"{file.name}.json"
    expected = first_units(safetensors.numpy.load_file(finished["run"] / "weights.safetensors"), units)
    x = np.random.default_rng(1).standard_normal((5, 1, 8, 8)).astype(np.float32)
    predict = opened(file)
    np.testing.assert_allclose(predict(x), answers(expected, x), atol=1e-5)
    np.testing.assert_allclose(predict(x[:1]), answers(expected, x[:1]), atol=1e-5)

    assert hashlib.sha256(file.read_bytes()).hexdigest() == card["sha256"]
    assert card["units"] == {"1": units, "3": units}
    assert card["parameters"] == sum(p.numel() for p in expected.parameters())
    assert card["batch"] == (1 if runtime == "executorch" else None)
    assert (card["input"], card["outputs"]) == ({"shape": [1, 8, 8], "dtype": "float32"}, [10])


def test_the_card_says_what_the_run_knows_and_claims_no_accuracy_for_what_was_not_measured(
    run: Path, bundle: Bundle, tmp_path: Path
) -> None:
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    cards = []
    for width in (1.0, 0.5):
        command(
            run=run,
            bundle=bundle.root,
            runtime="torch",
            width=width,
            untrained_width=True,
            output=tmp_path / f"{width}.pt2",
        )
        cards.append(json.loads((tmp_path / f"{width}.pt2.json").read_text()))

    full, half = cards
    assert (full["run"], full["method"], full["round"]) == ("two-rounds", "fedavg", 2)
    assert full["scores"] == last["scores"]
    assert 0 < half["scores"]["accuracy"] < 1
    assert full["test_data"] == half["test_data"] == "the test split of digits"
    assert half["width"] == 0.5
    assert full["tools"]["torch"] == torch.__version__


def test_class_names_and_the_users_metadata_travel_with_the_model_and_in_it(
    run: Path, bundle: Bundle, names: Path, tmp_path: Path
) -> None:
    for file in ("digits.onnx", "digits.pt2"):
        command(
            run=run,
            bundle=bundle.root,
            runtime="onnx" if file.endswith("onnx") else "torch",
            class_names=names,
            metadata=["licence=CC BY 4.0", "note=a=b"],
            output=tmp_path / file,
        )
    card = json.loads((tmp_path / "digits.onnx.json").read_text())
    assert json.loads((tmp_path / "digits.pt2.json").read_text())["file"] == "digits.pt2"
    inside: list[dict[str, str]] = [
        {p.key: p.value for p in onnx.load(tmp_path / "digits.onnx").metadata_props},
        _extra_file(tmp_path / "digits.pt2"),
    ]

    assert card["class_names"] == list(NAMES)
    assert card["metadata"] == {"origin": "the export", "licence": "CC BY 4.0", "note": "a=b"}
    for properties in inside:
        assert json.loads(properties["class_names"]) == list(NAMES)
        assert (properties["licence"], properties["note"]) == ("CC BY 4.0", "a=b")
        assert (properties["run"], json.loads(properties["round"])) == ("two-rounds", 2)
        assert json.loads(properties["input"]) == {"shape": [1, 8, 8], "dtype": "float32"}


def _extra_file(path: Path) -> dict[str, str]:
    held: dict[str, Any] = {"properties.json": ""}
    torch.export.load(path, extra_files=held)
    return json.loads(held["properties.json"])  # type: ignore[no-any-return]


class Normalised(nn.Module):
    """A residual convolution block and a flatten, with statistics that are not those of the start."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.inner, self.norm = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.back, self.out = nn.Conv2d(6, 6, 1), nn.Linear(6 * 16, 3)
        for norm in (self.bn, self.norm):
            nn.init.normal_(norm.get_buffer("running_mean"))
            nn.init.uniform_(norm.get_buffer("running_var"), 0.5, 2.0)
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn(self.stem(x)))
        h = torch.relu(h + self.back(torch.relu(self.norm(self.inner(h)))))
        out: Tensor = self.out(h.flatten(1))
        return out


@pytest.fixture(scope="module")
def normalised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Normalised, Bundle]:
    torch.manual_seed(1)
    model = Normalised()
    return model, untrainable(model, Input((1, 4, 4), "float32"), 3, tmp_path_factory.mktemp("normalised"))


@pytest.mark.parametrize("width", [500, 1])
def test_convolutions_keep_their_running_statistics_and_flatten_what_is_left_of_them(
    width: int, normalised: tuple[Normalised, Bundle], tmp_path: Path
) -> None:
    model, bundle = normalised
    trained = Trained(bundle.weights(), "run", "fedavg", 1)
    path, card = extract(bundle, trained, Wanted("onnx", width), tmp_path)

    assert set(card.units.values()) == {-(-6 * width // 1000)}
    cut = Normalised()
    cut.load_state_dict(model.state_dict())
    for kept, layers in ((card.units["stem"], "stem bn back"), (card.units["inner"], "inner norm")):
        for layer in layers.split():
            for parameter in cut.get_submodule(layer).parameters():
                parameter.data[kept:] = 0
    x = np.random.default_rng(2).standard_normal((4, 1, 4, 4)).astype(np.float32)
    np.testing.assert_allclose(opened(path)(x), answers(cut, x), atol=1e-4)


def test_blocks_of_one_size_lose_units_one_without_the_other(
    normalised: tuple[Normalised, Bundle], tmp_path: Path
) -> None:
    model, bundle = normalised
    weights = bundle.weights()
    for name in ("inner.weight", "norm.weight", "norm.bias"):
        weights[name][[0, 2, 3]] = 0
    path, card = extract(bundle, Trained(weights, "run", "fedavg", 1), Wanted("torch", sparse=True), tmp_path)

    pruned = Normalised()
    pruned.load_state_dict({**model.state_dict(), **{n: torch.from_numpy(a) for n, a in weights.items()}})
    x = np.random.default_rng(2).standard_normal((4, 1, 4, 4)).astype(np.float32)
    assert card.units == {"stem": 6, "inner": 3}
    np.testing.assert_allclose(opened(path)(x), answers(pruned, x), atol=1e-4)


class WithConstants(nn.Module):
    """Its forward makes tensors: one that it adds, and an empty one as a decoder's cache begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.cat([torch.tensor([]), self.inner(x).relu()])
        outputs: Tensor = self.out(hidden) + torch.tensor([0.5, 0.25, 1.0])
        return outputs


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_a_forward_with_constants_is_delivered(runtime: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = WithConstants()
    bundle = untrainable(model, Input((4,), "float32"), 3, tmp_path / "bundle")
    path, _ = extract(bundle, Trained(bundle.weights(), "run", "fedavg", 1), Wanted(runtime), tmp_path / "out")

    x = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    np.testing.assert_allclose(opened(path)(x), answers(model, x), atol=1e-5)


def test_units_that_are_exactly_zero_are_left_out_and_nothing_changes(bundle: Bundle, tmp_path: Path) -> None:
    weights = bundle.weights()
    dead = [0, 5, 31]
    weights["1.weight"][dead] = weights["1.bias"][dead] = 0
    weights["3.weight"][:] = weights["3.bias"][:] = 0
    trained = Trained(weights, "run", "fedbiad", 1, {"accuracy": 0.5})
    path, card = extract(bundle, trained, Wanted("onnx", sparse=True), tmp_path)

    x = np.random.default_rng(3).standard_normal((5, 1, 8, 8)).astype(np.float32)
    assert card.units == {"1": 29, "3": 1}
    assert card.scores == {"accuracy": 0.5}
    np.testing.assert_allclose(opened(path)(x), answers(first_units(weights, 32), x), atol=1e-5)


def test_accuracy_is_that_of_the_width_trained_beyond_which_there_is_nothing_to_extract(
    bundle: Bundle, tmp_path: Path
) -> None:
    trained = Trained(bundle.weights(), "run", "efd", 1, {"accuracy": 0.5}, width=400)
    for width, scores in ((400, {"accuracy": 0.5}), (200, {})):
        _, card = extract(bundle, trained, Wanted("torch", width), tmp_path / str(width))
        assert card.scores == scores
        assert card.test_data is None  # measured when the run ended, on what may be no more
    with pytest.raises(ConfigError, match=r"trained a model of width 0\.4, .* extract that width or a narrower"):
        extract(bundle, trained, Wanted("torch", 500), tmp_path / "wider")


@pytest.fixture(scope="module")
def levels(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of HeteroFL with the levels a and c."""
    root = tmp_path_factory.mktemp("runs") / "levels"
    config = RunConfig(
        run="levels",
        method="heterofl",
        parameters={"levels": ["a", "c"]},
        rounds=3,
        clients_per_round=4,
        local_steps=20,
        batch=20,
        lr=0.1,
        seed=0,
    )
    clients, trainer = Population(4, tiers=2), TrainerSettings("stacked")
    Simulation(
        bundle=bundle, config=config, population=clients, trainer=trainer, root=root, observer=Observer()
    ).run()
    return root


class Scaled(nn.Module):
    """The digits' perceptron with the outputs of its hidden layers multiplied, as HeteroFL's scaler does."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.model = model
        for name in ("1", "3"):
            model.get_submodule(name).register_forward_hook(lambda _, __, outputs: factor * outputs)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.model(x)
        return outputs


@pytest.mark.parametrize(
    ("units", "factor"),
    [(8, 4.0), *(pytest.param(*case, marks=pytest.mark.matrix) for case in ((32, 1.0), (16, 2.0)))],
)
def test_a_level_of_heterofl_predicts_with_the_factor_that_it_trained_with(
    levels: Path, bundle: Bundle, units: int, factor: float, tmp_path: Path
) -> None:
    width = units / 32
    command(run=levels, bundle=bundle.root, runtime="onnx", width=width, output=tmp_path / "m.onnx")

    card = json.loads((tmp_path / "m.onnx.json").read_text())
    weights = safetensors.numpy.load_file(levels / "weights.safetensors")
    x = np.random.default_rng(1).standard_normal((5, 1, 8, 8)).astype(np.float32)
    expected = answers(Scaled(first_units(weights, units), factor), x)
    np.testing.assert_allclose(opened(tmp_path / "m.onnx")(x), expected, rtol=1e-4, atol=1e-4)
    assert card["factor"] == factor
    test = load_dataset("digits").test
    right = answers(Scaled(first_units(weights, units), factor), test.x).argmax(axis=1) == test.y
    assert card["scores"]["accuracy"] == pytest.approx(right.mean(), abs=2 / len(test.y))


def test_a_width_below_the_narrowest_level_is_refused_unless_asked_for(
    levels: Path, bundle: Bundle, tmp_path: Path
) -> None:
    wanted = {"run": levels, "bundle": bundle.root, "width": 0.1, "output": tmp_path / "m.onnx"}
    with pytest.raises(ConfigError, match=r"narrowest model of the method, as it was set, has width 0\.25"):
        command(**wanted, runtime="onnx")
    command(**wanted, runtime="onnx", untrained_width=True)
    assert json.loads((tmp_path / "m.onnx.json").read_text())["width"] == 0.1


def test_a_width_between_levels_names_those_beside_it(
    levels: Path, bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "The method has no width 0.3 as it was set: 0.25 and 1 may predict better."
    for width, told in ((0.3, True), (0.25, False)):
        command(run=levels, bundle=bundle.root, runtime="onnx", width=width, output=tmp_path / "m.onnx")
        assert (said in capsys.readouterr().err) == told


def test_the_forward_holds_no_weights_and_is_no_download_of_a_device(bundle: Bundle) -> None:
    program = torch.export.load(bundle.root / FORWARD)
    assert (program.state_dict, program.constants, program.example_inputs) == ({}, {}, None)
    assert FORWARD not in bundle.manifest.program_files("torch_eager")


def test_a_model_that_fixes_its_batch_has_no_forward(tmp_path: Path) -> None:
    class ThreeSamples(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.out(x.reshape(3, 6))
            return out

    with pytest.raises(UnsupportedModelError, match="forward"):
        save_forward(source(ThreeSamples(), Input((6,), "float32"), 3))


def test_a_file_that_computes_something_else_is_not_written(bundle: Bundle, tmp_path: Path) -> None:
    """A forward with tanh beside programs with ReLU: the same tensors, another model."""
    layers = list(mlp.digits().children())
    other = nn.Sequential(*(nn.Tanh() if isinstance(layer, nn.ReLU) else layer for layer in layers))
    wrong = with_forward(bundle, other, tmp_path / "wrong")

    with pytest.raises(ParityError, match="nothing was written"):
        extract(wrong, Trained(bundle.weights(), "run", "fedavg", 1), Wanted("torch"), tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("options", "exit_code", "says"),
    [
        ({"run": Path("nowhere")}, 21, "no run at 'nowhere'"),
        ({"runtime": "tflite"}, 18, "no runtime 'tflite'"),
        ({"width": 0.0}, 15, r"in \(0, 1\]"),
        ({"width": 1.5}, 15, r"in \(0, 1\]"),
        ({"class_names": Path(__file__)}, 14, "line without a name"),
        ({"class_names": Path(__file__).parents[2] / "constraints.txt"}, 15, "class names for 10 classes"),
        ({"class_names": Path("nowhere.txt")}, 14, "nowhere.txt"),
        ({"metadata": ["licence"]}, 15, "KEY=VALUE"),
        ({"metadata": ["round=7"]}, 15, "'round'"),
        ({"output": Path("model.pte")}, 15, "end in '.onnx'"),
        ({"bundle": Path("nowhere")}, 13, "no bundle"),
    ],
)
def test_what_cannot_be_extracted_is_one_sentence_and_an_exit_code(
    options: dict[str, Any], exit_code: int, says: str, finished: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(EdgeFLError, match=says) as caught:
        command(**{**finished, "output": tmp_path / "out", **options})

    assert caught.value.exit_code == exit_code
    assert not (tmp_path / "out").exists()


def _changed(run: Path, to: Path, **tensors: NDArray[np.float32] | None) -> Path:
    to.mkdir()
    for name in ("config.json", "metrics.jsonl"):
        (to / name).write_bytes((run / name).read_bytes())
    weights = {**safetensors.numpy.load_file(run / "weights.safetensors"), **tensors}
    safetensors.numpy.save_file(
        {name: array for name, array in weights.items() if array is not None}, to / "weights.safetensors"
    )
    return to


def test_weights_of_another_model_or_of_none_are_refused(run: Path, bundle: Bundle, tmp_path: Path) -> None:
    other = _changed(run, tmp_path / "other", **{"5.bias": np.zeros(3, dtype=np.float32)})
    fewer = _changed(run, tmp_path / "fewer", **{"5.bias": None})
    diverged = _changed(run, tmp_path / "diverged", **{"5.bias": np.full(10, np.nan, dtype=np.float32)})
    missing = _changed(run, tmp_path / "missing")
    (missing / "weights.safetensors").unlink()
    damaged = _changed(run, tmp_path / "damaged")
    (damaged / "weights.safetensors").write_bytes(b"no tensors")

    for folder, says in (
        (other, "not of this bundle's model"),
        (fewer, "hold none"),
        (diverged, "diverged"),
        (missing, "no final weights"),
        (damaged, "damaged"),
    ):
        with pytest.raises(RunError, match=says):
            command(run=folder, bundle=bundle.root, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_bundle_without_a_forward_says_what_to_do(bundle: Bundle, tmp_path: Path) -> None:
    files = {name: bundle.read(name) for name in bundle.manifest.files if name != FORWARD}
    old = Bundle.save(tmp_path / "old", bundle.manifest, files)

    with pytest.raises(BundleError, match="export it anew"):
        extract(old, Trained(old.weights(), "run", "fedavg", 1), Wanted("torch"), tmp_path / "out")


@pytest.mark.matrix
def test_from_the_command_line(run: Path, bundle: Bundle, tmp_path: Path) -> None:
    code = "from edge_fl.cli.main import run; run()"
    options = ["--bundle", str(bundle.root), "--runtime", "torch", "--width", "0.5", "--untrained-width"]
    options += ["-o", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", code, "extract", str(run), *options, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    printed = json.loads(done.stdout)
    assert printed.pop("path") == str(tmp_path / "model.pt2")
    assert printed == json.loads((tmp_path / "model.pt2.json").read_text())


def test_without_the_runtimes_compiler_the_sentence_names_it(run: Path, bundle: Bundle, tmp_path: Path) -> None:
    code = "import sys; sys.modules['executorch'] = None\nfrom edge_fl.cli.main import run; run()"
    options = ["--bundle", str(bundle.root), "--runtime", "executorch", "-o", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", code, "extract", str(run), *options], capture_output=True, text=True, check=False
    )

    assert done.returncode == 18
    assert "The runtime 'executorch' needs what is not installed here" in done.stderr
    assert not (tmp_path / "out").exists()
