"""BatchNorm with statistics of its own for each width."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle, Optimizer
from edge_fl.core.errors import ParityError
from edge_fl.core.inputs import Input
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, masked
from edge_fl.core.width_statistics import one_hot, row_weights, width_of, without_rows
from edge_fl.data.registry import load_dataset
from edge_fl.runs.config import RunConfig
from edge_fl.runtimes.base import RUNTIMES, open_runtime
from edge_fl.training.evaluator import Evaluator
from edge_fl.wire.messages import Evaluate, Registered
from exporter.export import Target, export_bundle
from exporter.extract.extract import Trained, Wanted, extract
from exporter.limits import LIMIT
from exporter.zoo import find_model
from tests.broker.test_federated_evaluation import impatient
from tests.broker.test_gateway import ROUND, Wire, register

WIDTHS = (1000, 600, 200)
STATISTICS = ("2.running_mean", "2.running_var", "5.running_mean", "5.running_var")


def model() -> nn.Sequential:
    """Layers of 7 and 6 units whose statistics are not those of the start."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(64, 7), nn.BatchNorm1d(7), nn.ReLU()),
        *(nn.Linear(7, 6), nn.BatchNorm1d(6, momentum=0.3), nn.ReLU()),
        nn.Linear(6, 10),
    )
    for norm in (layers[2], layers[5]):
        nn.init.normal_(norm.get_buffer("running_mean"))
        nn.init.uniform_(norm.get_buffer("running_var"), 0.5, 2.0)
    return layers


def target(*runtimes: str, widths: tuple[int, ...] = WIDTHS, **options: object) -> Target:
    return Target(
        name="normalised",
        dataset="digits",
        input=Input((1, 8, 8), "float32"),
        classes=10,
        runtimes=runtimes,
        widths=widths,
        batch=20,
        batch_norm="per-width",
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    torch.set_num_threads(1)
    return export_bundle(model(), target("onnx", "torch_eager"), tmp_path_factory.mktemp("bundle"))


def batch() -> Batch:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 1, 8, 8)).astype(np.float32)
    return Batch(x, rng.integers(0, 10, 20), np.ones(20, dtype=np.float32))


def different_rows(bundle: Bundle) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    weights = bundle.weights()
    for name in STATISTICS:
        weights[name] = weights[name] + np.arange(1, len(WIDTHS) + 1, dtype=np.float32)[:, None]
    return weights


def test_every_row_starts_as_the_models_own_and_the_manifest_says_whose_it_is(bundle: Bundle) -> None:
    weights, own = bundle.weights(), model().state_dict()

    assert (bundle.manifest.batch_norm, bundle.manifest.statistic_widths) == ("per-width", WIDTHS)
    for name in STATISTICS:
        assert weights[name].shape == (3, *own[name].shape)
        assert all(np.array_equal(row, own[name].numpy()) for row in weights[name])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "runtime",
    [
        pytest.param(runtime, marks=() if runtime == "executorch" else pytest.mark.matrix)
        for runtime in sorted({*RUNTIMES.names()} - {"onnx", "torch_eager"})
    ],
)
def test_every_other_runtime_is_proven_too(runtime: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if runtime == "ort_training":
        request.getfixturevalue("ort_training_python")
    torch.manual_seed(0)
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))
    wanted = target(runtime, widths=(1000, 500))

    assert export_bundle(small, wanted, tmp_path).manifest.parity[runtime].steps >= 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize("runtime", ["onnx", pytest.param("torch_eager", marks=pytest.mark.matrix)])
def test_residual_networks_are_proven(runtime: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    what = find_model("resnet18").narrowed
    taken = Input(what.input_shape, "float32")
    wanted = replace(target(runtime, widths=(1000, 500)), input=taken, classes=what.classes, batch=6)

    manifest = export_bundle(what.build(), wanted, tmp_path).manifest

    assert manifest.statistic_widths == (1000, 500)
    assert 0 < manifest.parity[runtime].weights <= LIMIT
    assert 0 < manifest.parity[runtime].outputs <= LIMIT


@pytest.mark.parametrize("runtime", ["onnx", "torch_eager"])
@pytest.mark.parametrize("row", range(3))
def test_a_step_moves_the_row_of_its_width_as_torch_moves_its_buffers(
    runtime: str, row: int, bundle: Bundle
) -> None:
    pattern, start, data = Pattern.prefix(bundle.layout, WIDTHS[row]), bundle.weights(), batch()
    selection = Selection.of(pattern, "units")
    step = open_runtime(runtime, bundle).train_step(pattern, 20)

    done = step(selection.gather(start), data, lr=0.1, width=width_of(pattern))
    after = {name: array.copy() for name, array in start.items()}
    selection.scatter(done.tensors, after)

    theirs = model()
    compact = Selection.of(Pattern(without_rows(bundle.layout), pattern.mask), "units")
    kept = compact.gather({name: tensor.numpy() for name, tensor in theirs.state_dict().items() if tensor.ndim})
    first, second = pattern.counts.values()
    theirs[1], theirs[2] = nn.Linear(64, first), nn.BatchNorm1d(first)
    theirs[4], theirs[5] = nn.Linear(first, second), nn.BatchNorm1d(second, momentum=0.3)
    theirs[7] = nn.Linear(second, 10)
    theirs.load_state_dict({name: torch.from_numpy(array) for name, array in kept.items()}, strict=False)
    theirs(torch.from_numpy(data.x))
    buffers = dict(theirs.named_buffers())
    for name in STATISTICS:
        np.testing.assert_allclose(done.tensors[name][row], buffers[name].numpy(), rtol=1e-5, atol=1e-6)
        others = [i for i in range(3) if i != row]
        assert np.array_equal(after[name][others], start[name][others])
        assert not np.array_equal(after[name][row], start[name][row])


@pytest.mark.parametrize("width", WIDTHS)
def test_the_masked_model_at_a_width_gives_what_the_extracted_one_gives(
    width: int, bundle: Bundle, tmp_path: Path
) -> None:
    weights, data = different_rows(bundle), batch()
    pattern = Pattern.prefix(bundle.layout, width)
    path, card = extract(bundle, Trained(weights, "run", "fjord", 1), Wanted("torch", width), tmp_path)

    extracted = torch.export.load(path).module()(torch.from_numpy(data.x)).detach().numpy()
    evaluate = open_runtime("onnx", bundle).evaluator()
    outputs = {w: evaluate(masked(weights, pattern), data, width=w)[1] for w in WIDTHS}
    np.testing.assert_allclose(extracted, outputs[width], atol=1e-5)
    assert all(np.abs(extracted - outputs[w]).max() > 1e-2 for w in WIDTHS if w != width)
    assert card.units == pattern.counts

    theirs = model().eval()
    own = row_weights(bundle.layout, masked(weights, pattern), WIDTHS, width)
    theirs.load_state_dict({name: torch.from_numpy(array) for name, array in own.items()}, strict=False)
    np.testing.assert_allclose(extracted, theirs(torch.from_numpy(data.x)).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("runtime", ["onnx", pytest.param("torch_eager", marks=pytest.mark.matrix)])
def test_every_variant_is_proven_and_a_student_moves_the_row_of_its_own_width(
    runtime: str, tmp_path: Path
) -> None:
    wanted = target(runtime, variants=("noise", "distil"), optimizer=Optimizer(momentum=0.9))
    bundle = export_bundle(model(), wanted, tmp_path)
    full, start, data = Pattern.full(bundle.layout), bundle.weights(), batch()
    slim = Pattern.prefix(bundle.layout, 200)
    masks = {f"student.{b.name}": np.isin(full.kept[b.name], slim.kept[b.name]) for b in bundle.layout.blocks}
    extra = {
        **{name: mask.astype(np.float32) for name, mask in masks.items()},
        **{name: np.array(1, dtype=np.float32) for name in ("alpha", "temperature", "forward")},
        "student_width": one_hot(WIDTHS, 200),
    }
    step = open_runtime(runtime, bundle).train_step(full, 20, "distil")

    done = step(start, data, lr=0.1, slots=step.fresh_slots(start), extra=extra)

    for name in STATISTICS:
        moved = (done.tensors[name] != start[name]).any(axis=1)
        assert moved.tolist() == [True, False, True]


def test_programs_of_another_row_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = np.array([1, 0, 0], dtype=np.float32)
    monkeypatch.setattr("edge_fl.runtimes.base.one_hot", lambda widths, width: first)

    with pytest.raises(ParityError, match=r"'2\.running_"):
        export_bundle(model(), target("torch_eager"), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("trainer", ["runtime", "stacked"])
def test_a_fleet_trains_the_statistics_of_the_widths_it_can_run(
    trainer: str, bundle: Bundle, tmp_path: Path
) -> None:
    """No device of these tiers runs the full width: its statistics stay, all others move, and the full model is
    measured with those of the widest.
    """
    config = RunConfig(
        run="ordered",
        method="fjord",
        parameters={"widths": [600, 200]},
        rounds=2,
        clients_per_round=4,
        local_steps=8,
        batch=20,
        lr=0.1,
        seed=0,
    )
    done = Simulation(
        bundle=bundle,
        config=config,
        population=Population(4, tiers=2),
        trainer=TrainerSettings(trainer),
        root=tmp_path,
        observer=Observer(),
    ).run()

    start, after = bundle.weights(), load_file(done.weights)
    for name in STATISTICS:
        assert np.array_equal(after[name][0], start[name][0])
        assert not np.array_equal(after[name][1], start[name][1])
        assert not np.array_equal(after[name][2], start[name][2])
    copied = after | {name: after[name][[1, 1, 2]] for name in STATISTICS}
    evaluator = Evaluator(bundle, load_dataset("digits").test)
    last = done.rounds[-1]
    one, other = evaluator.score(copied), evaluator.score(after)
    assert one is not None
    assert other is not None
    assert one.loss == other.loss == last.loss


@pytest.mark.parametrize(("moved", "taken"), [([0], 0), ([0, 2], 2), ([1, 2], 1), ([], 1)])
def test_a_width_that_was_not_trained_takes_the_statistics_of_the_nearest_that_was(
    moved: list[int], taken: int, bundle: Bundle, tmp_path: Path
) -> None:
    """At width 0.6: FedAvg moves the first row alone, HeteroFL at levels a and d the first and last."""
    weights, start, data = different_rows(bundle), bundle.weights(), batch()
    for name in STATISTICS:
        untouched = [row for row in range(3) if row not in moved]
        weights[name][untouched] = start[name][untouched]
    path, _ = extract(bundle, Trained(weights, "run", "fedavg", 1), Wanted("torch", 590), tmp_path)

    extracted = torch.export.load(path).module()(torch.from_numpy(data.x)).detach().numpy()
    theirs = model().eval()
    kept = masked(weights, Pattern.prefix(bundle.layout, 590))
    own = row_weights(bundle.layout, kept, WIDTHS, WIDTHS[taken])
    theirs.load_state_dict({name: torch.from_numpy(array) for name, array in own.items()}, strict=False)
    np.testing.assert_allclose(extracted, theirs(torch.from_numpy(data.x)).detach().numpy(), atol=1e-5)


def test_a_device_is_told_which_statistics_suit_its_width(bundle: Bundle, tmp_path: Path) -> None:
    """None of the full width's were trained, so that whoever evaluates the full model takes those of 0.6."""
    weights = bundle.weights()
    for name in STATISTICS:
        weights[name][1:] += 1
    wire = Wire(bundle, tmp_path)
    for tier, width, statistics in ((0, 1000, 600), (2, 600, 600), (4, 200, 200)):
        wire.answer(Registered, register(test_samples=20, tier=tier))
        wire.received.clear()
        assert impatient(wire, weights, "fjord").scores(ROUND) == {}
        wire.until(lambda: any(isinstance(m, Evaluate) for m in wire.received))
        asked = {(m.width, m.statistics) for m in wire.received if isinstance(m, Evaluate)}
        assert asked == {(width, statistics)}
    wire.close()
