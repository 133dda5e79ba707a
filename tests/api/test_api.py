"""The Python interface does what the commands do, on data and models that are in no data set of ours."""

import csv
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import edge_fl
from edge_fl.cli.main import app
from edge_fl.core.errors import ConfigError, DataError, EdgeFLError, StateError

SENSORS = """
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv1d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(48, 12), nn.ReLU(),
        nn.Linear(12, 3),
    )
"""
WHO = ("command", "python")
OPTIONS = "label=state&owner=user&shape=2x16"


def write_windows(path: Path, count: int, seed: int) -> None:
    """Sensor windows of three states by three users: a wave of a frequency each, with noise."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"{axis}{i}" for axis in "xy" for i in range(16)), "state", "user"])
        for i in range(count):
            state = int(rng.integers(3))
            wave = np.sin(np.arange(16) * 0.4 * (state + 1) + rng.uniform(0, 6))
            window = np.concatenate([wave, -wave]) + 0.2 * rng.standard_normal(32)
            writer.writerow([*np.round(window, 4), state, ("anna", "ben", "cleo")[i % 3]])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of somebody's own: a model, training data and held-out data."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "model.py").write_text(SENSORS)
    write_windows(folder / "all.csv", 240, 0)
    write_windows(folder / "held-out.csv", 90, 1)
    return folder


def model() -> nn.Module:
    space: dict[str, object] = {}
    exec(SENSORS, space)
    torch.manual_seed(0)
    built = space["build"]()  # type: ignore[operator]
    assert isinstance(built, nn.Module)
    return built


def command(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edge_fl", *words], cwd=place, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def bundle(place: Path) -> edge_fl.Bundle:
    return edge_fl.export(model(), torch.zeros(2, 2, 16), output=place / "bundle", name="model")


def test_python_and_commands_give_the_same_weights_bit_for_bit(place: Path, bundle: edge_fl.Bundle) -> None:
    exported = command(
        place, "export", "model.py:build", "--input-shape", "2x16", "--classes", "3", "-o", "by-command"
    )
    assert exported.returncode == 0, exported.stderr
    theirs = edge_fl.Bundle.load(place / "by-command").weights()
    assert all(np.array_equal(array, theirs[name]) for name, array in bundle.weights().items())
    words = f"simulate by-command --data csv:all.csv?{OPTIONS} --test-data csv:held-out.csv?{OPTIONS} --clients 3"
    words += " --fraction 1 --partition owners --rounds 3 --method fedbiad+dgc --dropout 0.25 --set dgc.ratio=0.1"
    words += " --score accuracy --score macro-f1 -o simulated"
    simulated = command(place, *words.split())
    assert simulated.returncode == 0, simulated.stderr
    run = edge_fl.simulate(
        bundle,
        f"csv:{place}/all.csv?{OPTIONS}",
        test_data=f"csv:{place}/held-out.csv?{OPTIONS}",
        method=edge_fl.FedBIAD(dropout=0.25) + edge_fl.DGC(ratio=0.1),
        clients=3,
        fraction=1,
        partition="owners",
        rounds=3,
        scores=["accuracy", "macro-f1"],
        output=place / "by-python",
    )
    other = edge_fl.Run.open(place / "simulated")
    assert all(np.array_equal(array, other.weights[name]) for name, array in run.weights.items())
    assert [m.scores for m in run.metrics] == [m.scores for m in other.metrics]
    assert list(run.scores) == ["accuracy", "macro-f1"]
    assert run.plot().stat().st_size > 10_000
    page = run.compare(other, path=place / "compare.html").read_text()
    assert "fedbiad+dgc" in page
    assert "data:image/png;base64," in page
    extracted = command(place, "extract", "simulated", "-o", "by-command.onnx", "--json")
    assert extracted.returncode == 0, extracted.stderr
    delivered = edge_fl.extract(run, place / "by-python.onnx", metadata={"licence": "MIT"})
    card = json.loads(extracted.stdout)
    assert delivered.card.scores == card["scores"] == pytest.approx(run.scores)
    assert delivered.card.metadata == {"licence": "MIT"}
    samples = {"x": np.random.default_rng(2).standard_normal((5, 2, 16)).astype(np.float32)}
    answers = [onnxruntime.InferenceSession(str(place / f"by-{who}.onnx")).run(None, samples)[0] for who in WHO]
    assert np.array_equal(*answers)
    shown = command(place, "compare", "simulated", "by-python", "-o", "compare.png", "--json")
    assert shown.returncode == 0, shown.stderr
    assert (place / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_data_come_as_objects_too(place: Path, bundle: edge_fl.Bundle) -> None:
    x, y = torch.randn(60, 2, 16), torch.randint(3, (60,))
    pairs = torch.utils.data.TensorDataset(x, y)
    runs = [
        edge_fl.simulate(bundle, data, clients=4, rounds=2, output=place / f"objects-{i}")
        for i, data in enumerate([(x.numpy(), y.numpy()), {"x": x.numpy(), "y": y.numpy()}, pairs])
    ]
    first = runs[0].weights
    for run in runs:
        assert not run.scores
        assert run.records()[-1]["loss"] is None
        assert all(np.array_equal(array, first[name]) for name, array in run.weights.items())


def test_a_private_run_takes_the_bounds_place(place: Path, bundle: edge_fl.Bundle) -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 2, 16)).astype("float32"), np.arange(60) % 3
    privacy = edge_fl.Privacy("central", epsilon=50, delta=1e-2)
    run = edge_fl.simulate(
        bundle, (x, y), clients=8, fraction=0.5, rounds=2, privacy=privacy, output=place / "private"
    )
    made = run.config.privacy
    assert made is not None
    assert (made.devices, run.config.norm_bound, run.config.samples_bound) == (8, None, None)
    assert run.records()[-1]["epsilon"] == pytest.approx(50, rel=0.02)
    assert run.records()[-1]["train_loss"] is None


def test_without_test_data_a_run_says_so_once_and_trains(place: Path, bundle: edge_fl.Bundle) -> None:
    words = f"simulate bundle --data csv:all.csv?{OPTIONS} --clients 3 --rounds 2 -o unscored"
    done = command(place, *words.split())
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no test data") == 1
    assert "training loss" in done.stdout
    assert "none" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ("simulate bundle", 15, "was not made for a data set"),
        (f"simulate bundle --data csv:all.csv?{OPTIONS} --score mae", 15, "use accuracy"),
        (f"simulate bundle --data csv:all.csv?{OPTIONS} --test-data digits", 14, "samples of shape (1, 8, 8)"),
        ("simulate bundle --data csv:all.csv?target=x0&features=x1", 14, "samples of shape"),
        ("simulate bundle --data csv:gone.csv", 14, "gone.csv"),
        ("compare nowhere", 21, "There is no run at 'nowhere'"),
        ("serve bundle --port 0 --test-data digits", 14, "samples of shape (1, 8, 8)"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    place: Path, bundle: edge_fl.Bundle, words: str, code: int, sentence: str
) -> None:
    before = sorted(place.rglob("*"))
    refused = command(place, *words.split())
    assert sentence in refused.stderr
    assert refused.stderr.count("\n") <= 2
    assert refused.returncode == code
    assert sorted(place.rglob("*")) == before


def test_a_model_or_data_that_cannot_be_are_one_sentence(place: Path, bundle: edge_fl.Bundle) -> None:
    with pytest.raises(EdgeFLError, match="does not take the example inputs"):
        edge_fl.export(model(), torch.zeros(2, 5), output=place / "never")
    with pytest.raises(EdgeFLError, match=r"lack the axis of the batch, give \[B, 2, 16\]\.$"):
        edge_fl.export(model(), torch.zeros(2, 16), output=place / "never")
    with pytest.raises(EdgeFLError, match="A function is no model"):
        edge_fl.export(model, torch.zeros(2, 5), output=place / "never")  # type: ignore[arg-type]
    with pytest.raises(EdgeFLError, match="'widths' takes a list of numbers"):
        edge_fl.export(model(), torch.zeros(2, 2, 16), widths="1,0.5", output=place / "never")  # type: ignore[arg-type]
    assert repr(bundle).startswith("Bundle(")
    with pytest.raises(DataError, match="both need as many samples"):
        edge_fl.simulate(bundle, (np.zeros((5, 2, 16)), np.zeros(4)), output=place / "never")
    with pytest.raises(DataError, match="an object of type 'int'"):
        edge_fl.simulate(bundle, 5, output=place / "never")
    with pytest.raises(StateError, match="There is no run"):
        edge_fl.Run.open(place / "never")
    assert not (place / "never").exists()


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("method", edge_fl.FedBIAD, r"edge_fl\.FedBIAD; call edge_fl\.FedBIAD\(\)"),
        ("fraction", "x", r"in \(0, 1\], not x"),
        ("partition", 5, "'5' is no partition"),
        ("scores", "accuracy", r"such as \['accuracy'\]"),
        ("scores", [len], "'scores' takes a list of names, not .* write 'file.py:NAME'"),
        ("selection", "rand", "'selection' cannot be 'rand': give random or least-recent or"),
        ("tier_choice", "best", "'tiers' cannot be 'best': give registered or auto"),
        ("evaluate_on", 2, "give --test-share beside --evaluate-on"),
        ("world", "wifi", r"'world' takes, for instance, edge_fl\.World\(link='wifi'\)"),
        ("lr_drops", 0.5, r"'lr_drops' takes, for instance, \[0\.5, 0\.75\]"),
        ("parameters", ["dropout=0.5"], r"'parameters' takes, for instance, \{'dropout': 0\.5\}"),
    ],
)
def test_an_option_of_another_type_is_one_sentence(
    place: Path, bundle: edge_fl.Bundle, option: str, value: Any, sentence: str
) -> None:
    data = (np.zeros((6, 2, 16), np.float32), np.arange(6) % 2)
    with pytest.raises(EdgeFLError, match=sentence):
        edge_fl.simulate(bundle, data, clients=2, output=place / "never", **{option: value})
    assert not (place / "never").exists()


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("runtimes", "onnx", r"'runtimes' takes a list, such as \['onnx'\]"),
        ("scores", [len], "'scores' takes a list of names, not .* write 'file.py:NAME'"),
        ("widths", 0.5, r"'widths' takes a list of numbers, such as \[1, 0\.5\]"),
        ("optimizer", "adamw", "no optimizer 'adamw'; there are sgd, adam"),
        ("optimizer", edge_fl.Optimizer("rmsprop"), "no optimizer 'rmsprop'"),  # type: ignore[arg-type]
        ("optimizer", torch.optim.Adam([torch.zeros(1)]), r"or edge_fl\.Optimizer\(\.\.\.\), not Adam"),
        (
            "batch_norm",
            "per_width",
            "no batch-norm policy 'per_width'; there are tracked, per-width, static, frozen",
        ),
        ("frozen_dtype", "int4", "stored as float32, float16 or int8, not as 'int4'"),
        ("target", "int32", "no dtype of targets 'int32'"),
        ("batch", "8", "'batch' is a number of samples, such as 20, not '8'"),
        ("micro_batch", 2.5, "'micro_batch' is a number of samples"),
        ("widths", None, "'widths' takes a list of numbers"),
        ("widths", [], "'widths' takes a list of numbers"),
        ("batch", True, "'batch' is a number of samples"),
        ("loss", None, "A loss is a name such as 'mse'"),
        ("optimizer", edge_fl.Optimizer(weight_decay="x"), "'weight_decay' cannot be 'x'"),  # type: ignore[arg-type]
    ],
)
def test_an_option_of_an_export_that_cannot_be_is_one_sentence(
    place: Path, option: str, value: Any, sentence: str
) -> None:
    with pytest.raises(EdgeFLError, match=sentence):
        edge_fl.export(model(), torch.zeros(2, 2, 16), output=place / "never", **{option: value})
    assert not (place / "never").exists()


def test_names_come_in_any_iterable_or_none(place: Path) -> None:
    one = edge_fl.export(
        model(), torch.zeros(2, 2, 16), runtimes=(n for n in ["onnx"]), train=None, output=place / "any"
    )
    assert {*one.manifest.programs} == {"onnx"}
    assert not one.layout.frozen


def test_regression_is_first_class(place: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 5)).astype(np.float32)
    y = np.stack([x[:, 0] - x[:, 1], 2 * x[:, 2]], axis=1)
    torch.manual_seed(0)
    bundle = edge_fl.export(
        nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2)),
        torch.zeros(2, 5),
        loss="huber",
        scores=["r2", "rmse"],
        output=place / "regression",
    )
    data, held_out = (x[:300], y[:300]), (x[300:], y[300:])
    run = edge_fl.simulate(bundle, data, test_data=held_out, clients=5, fraction=1, output=place / "regressed")
    assert list(run.scores) == ["r2", "rmse"]
    assert run.scores["r2"] > 0.9


def test_importing_edge_fl_imports_nothing_heavy() -> None:
    code = "import sys, edge_fl; print(sorted({'numpy', 'msgspec', 'torch', 'broker', 'exporter'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(edge_fl.__all__) <= set(dir(edge_fl))


def test_a_file_of_the_user_s_that_hides_a_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "broker.py").write_text("answer = 42\n")
    done = command(tmp_path, "serve", "bundle")
    assert done.returncode == 15
    assert f"'{tmp_path / 'broker.py'}' hides edge-fl's package 'broker'" in done.stderr


def test_a_width_that_no_model_was_trained_of_is_refused_unless_asked_for(
    place: Path, bundle: edge_fl.Bundle
) -> None:
    data, held_out = (f"csv:{place}/{name}.csv?{OPTIONS}" for name in ("all", "held-out"))
    edge_fl.simulate(bundle, data, test_data=held_out, clients=3, rounds=2, output=place / "narrow")
    words = ["extract", str(place / "narrow"), "--width", "0.5", "-o", str(place / "half.onnx")]
    refused = command(place, *words)
    assert refused.returncode == 15
    assert "'fedavg' trains no narrower models" in refused.stderr
    assert not (place / "half.onnx").exists()
    insisted = CliRunner().invoke(app, [*words, "--untrained-width"])
    assert insisted.exit_code == 0, insisted.output
    assert "accuracy" in insisted.stdout


def test_help_shows_what_a_simulation_takes() -> None:
    takes = inspect.signature(edge_fl.simulate)
    assert {"method", "clients", "lr_warmup", "output"} <= set(takes.parameters)
    assert takes.return_annotation is edge_fl.Run
    assert "tiers, partition" in (edge_fl.simulate.__doc__ or "")
    with pytest.raises(TypeError, match=r"simulate\(\) has no option 'round'; did you mean 'rounds'\?"):
        edge_fl.simulate("bundle", round=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'secure_aggregation'; did you mean 'secure'"):
        edge_fl.simulate("bundle", secure_aggregation=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'link'; it belongs to edge_fl.World, which 'world' takes"):
        edge_fl.simulate("bundle", link="lte")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"belongs to the method: parameters=\{'dropout'"):
        edge_fl.simulate("bundle", dropout=0.5)  # type: ignore[call-arg]


def test_numbers_of_numpy_are_numbers(digits_bundle: edge_fl.Bundle, tmp_path: Path) -> None:
    """As a sweep over its arrays gives them; of float32 those that it holds exactly."""
    runs = [
        edge_fl.simulate(
            digits_bundle,
            method="feddrop",
            parameters={"dropout": number(0.5)},
            clients=whole(4),
            fraction=number(0.5),
            tiers=whole(2),
            test_share=number(0.25),
            world=edge_fl.World("lte", steps=(number(0.125),), slowdowns=(number(1), number(2))),
            privacy=edge_fl.Privacy("central", noise=number(0.0078125), devices=whole(4)),
            rounds=whole(2),
            lr=number(0.25),
            output=tmp_path / whole.__name__,
        )
        for whole, number in ((int, float), (np.int64, np.float32))
    ]
    for name, array in runs[0].weights.items():
        np.testing.assert_array_equal(runs[1].weights[name], array)


def test_a_coordinator_reads_test_data_from_a_file(place: Path, bundle: edge_fl.Bundle) -> None:
    samples = (np.zeros((3, 2), np.float32), np.zeros(3, np.int64))
    with pytest.raises(ConfigError, match="A coordinator reads test data from a file"):
        edge_fl.serve(bundle, test_data=samples)  # type: ignore[arg-type]


def test_a_run_is_extracted_with_its_own_bundle_alone(tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    bundle = edge_fl.export(nn.Linear(4, 3), torch.randn(2, 4), output=place)
    x = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    run = edge_fl.simulate(bundle, (x, np.arange(40) % 3), clients=2, rounds=1, output=tmp_path / "run")
    edge_fl.export(nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()), torch.randn(2, 4), output=place)
    with pytest.raises(EdgeFLError, match="trained another bundle"):
        edge_fl.extract(run, tmp_path / "model.onnx")


def test_a_run_of_arrays_is_scored_on_what_is_given_again(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    bundle = edge_fl.export(model, torch.randn(2, 4), output=tmp_path / "bundle")
    data = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32), np.arange(40) % 3
    run = edge_fl.simulate(bundle, data, test_data=data, clients=2, rounds=1, output=tmp_path / "run")
    half = {"width": 0.5, "untrained_width": True}
    said: list[str] = []
    unscored = edge_fl.extract(run, tmp_path / "unscored.onnx", warn=said.append, **half)  # type: ignore[arg-type]
    assert not unscored.card.scores
    assert "give them as test data" in said[0]
    scored = edge_fl.extract(run, tmp_path / "scored.onnx", test_data=data)
    assert scored.card.scores == pytest.approx(run.scores)
    narrow = edge_fl.extract(run, tmp_path / "narrow.onnx", test_data=data, **half)  # type: ignore[arg-type]
    assert 0 <= narrow.card.scores["accuracy"] <= 1
    with pytest.raises(EdgeFLError, match=r"files end in \.onnx, \.pte, \.pt2"):
        edge_fl.extract(run, tmp_path / "model.pt")
    assert not (tmp_path / "model.pt").exists()
