"""BatchNorm statistics collected from clients at the end of a run, beside torch's own."""

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from broker.observer import Observer
from broker.recipe_checks import check_recipe
from broker.session import resume, serve
from broker.statistics_round import StatisticsRound, collects, with_collection
from broker.summary import RunSummary
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from device_sim.emulation.chaos import same_weights
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.aggregation.bounds import Bounds
from edge_fl.core.bundle import Bundle, Manifest
from edge_fl.core.content import Ref
from edge_fl.core.errors import ConfigError
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.data.batcher import batches
from edge_fl.data.partition import DataSpec, client_samples
from edge_fl.data.registry import load_dataset
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig, SecureAggregation
from edge_fl.runs.privacy import Privacy
from edge_fl.runtimes.base import open_runtime
from edge_fl.training.batch_statistics import make_statistics
from edge_fl.transport.address import BrokerAddress
from edge_fl.wire.frame import Header, decode_frame, encode_frame
from edge_fl.wire.messages import CollectedStatistics, CollectStatistics, Register
from edge_fl.wire.sparse import SPARSE, encode_sent
from exporter.commands.extract import extract as command
from exporter.export import export_bundle
from tests.e2e.conftest import System
from tests.e2e.test_federated_evaluation import killed
from tests.exporter.test_per_width import STATISTICS, model, target

CLIENTS, ROUNDS, BATCH, SEED = 4, 2, 20, 7
Arrays = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """With statistics of both widths; the second layer's momentum is not the first's."""
    torch.set_num_threads(1)
    wanted = target("onnx", "torch_eager", widths=(1000, 500))
    return export_bundle(model(), wanted, tmp_path_factory.mktemp("rows") / "bundle")


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """With one set of statistics."""
    wanted = replace(target("onnx", widths=(1000, 500)), batch_norm="tracked")
    return export_bundle(model(), wanted, tmp_path_factory.mktemp("single") / "bundle")


def config(**parameters: object) -> RunConfig:
    return RunConfig(
        run="collecting",
        method="heterofl",
        parameters={"levels": ["a", "b"], **parameters},
        rounds=ROUNDS,
        clients_per_round=CLIENTS,
        local_steps=5,
        batch=BATCH,
        lr=0.1,
        seed=SEED,
        quorum=1.0,
    )


def simulated(bundle: Bundle, root: Path, trainer: str = "runtime", **parameters: object) -> RunSummary:
    return Simulation(
        bundle=bundle,
        config=config(**parameters),
        population=Population(CLIENTS, tiers=2),
        trainer=TrainerSettings(trainer),
        root=root,
        observer=Observer(),
    ).run()


def torch_layers(weights: Arrays, width: int) -> torch.nn.Sequential:
    """The first units as torch has them, up to the output layer: a level of half has twice a norm's outputs."""
    first, second = math.ceil(width * 7 / 1000), math.ceil(width * 6 / 1000)
    layers = torch.nn.Sequential(
        torch.nn.Flatten(),
        *(torch.nn.Linear(64, first), torch.nn.BatchNorm1d(first, momentum=None), torch.nn.ReLU()),
        *(torch.nn.Linear(first, second), torch.nn.BatchNorm1d(second, momentum=None), torch.nn.ReLU()),
    ).double()
    for name, tensor in layers.state_dict().items():
        if not name.rpartition(".")[2].startswith(("running", "num")):
            tensor.copy_(torch.from_numpy(weights[name][tuple(slice(0, n) for n in tensor.shape)]))
    for norm in (layers[2], layers[5]):
        norm.register_forward_hook(lambda _, __, outputs: 1000 / width * outputs)
    return layers


def torch_statistics(weights: Arrays, width: int, tiers: tuple[int, ...]) -> Arrays:
    """What torch's own BatchNorm keeps of the first units over the batches of these tiers' clients."""
    layers = torch_layers(weights, width).train()
    for i in range(CLIENTS):
        if i % 2 in tiers:
            samples = client_samples(DataSpec.parse(f"digits:{i}/{CLIENTS}"))
            stream = Stream.of(seed=SEED, purpose="statistics", client=f"client-{i}", round=ROUNDS)
            for batch in batches(samples, steps=len(samples.y) // BATCH, size=BATCH, stream=stream):
                layers(torch.from_numpy(batch.x).double())
    return {name: layers.state_dict()[name].numpy() for name in STATISTICS}


@pytest.mark.parametrize("trainer", ["runtime", "stacked"])
def test_statistics_are_those_of_torch_over_the_clients_batches(
    rows: Bundle, tmp_path: Path, trainer: str
) -> None:
    done, left = (
        simulated(rows, tmp_path / "static", trainer),
        simulated(rows, tmp_path / "not", trainer, static=False),
    )
    weights, trained = load_file(done.weights), load_file(left.weights)
    for tier, (row, width) in enumerate(((0, 1000), (1, 500))):
        for name, expected in torch_statistics(weights, width, (tier,)).items():
            units = len(expected)
            np.testing.assert_allclose(weights[name][row][:units], expected, rtol=1e-5, atol=1e-5)
            assert np.array_equal(weights[name][row][units:], trained[name][row][units:])
            assert np.abs(trained[name][row][:units] - expected).max() > 1e-2
    for name in weights.keys() - set(STATISTICS):
        assert np.array_equal(weights[name], trained[name])
    parts = [
        len(client_samples(DataSpec.parse(f"digits:{i}/{CLIENTS}")).y) // BATCH * BATCH for i in range(CLIENTS)
    ]
    assert done.rounds[-1].collected == {1000: parts[0] + parts[2], 500: parts[1] + parts[3]}
    assert not done.rounds[0].collected
    assert not left.rounds[-1].collected
    assert done.scores != left.scores


@pytest.mark.parametrize("static", [True, False])
def test_a_level_is_delivered_with_its_scaler_and_the_statistics_that_go_with_it(
    rows: Bundle, tmp_path: Path, *, static: bool
) -> None:
    """The second normalised layer is fed by the first: a factor of one alone would leave its statistics wrong."""
    done = simulated(rows, tmp_path / "run", static=static)
    weights = load_file(done.weights)
    command(run=tmp_path / "run", bundle=rows.root, runtime="onnx", width=0.5, output=tmp_path / "half.onnx")

    layers = torch_layers(weights, 500)
    for name in STATISTICS:
        held = layers.state_dict()[name]
        held.copy_(torch.from_numpy(weights[name][1][: len(held)]))
    x = load_dataset("digits").test.x[:20]
    with torch.no_grad():
        hidden = layers.eval()(torch.from_numpy(x).double()).numpy()
    expected = hidden @ weights["7.weight"][:, : hidden.shape[1]].T + weights["7.bias"]
    session = onnxruntime.InferenceSession(tmp_path / "half.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-4)


def test_one_set_of_statistics_is_the_widest_model_s(single: Bundle, tmp_path: Path) -> None:
    weights = load_file(simulated(single, tmp_path / "run").weights)
    for name, expected in torch_statistics(weights, 1000, (0,)).items():
        np.testing.assert_allclose(weights[name], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wanted", [None, False])
def test_what_dropping_units_shifted_is_collected_anew(
    single: Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture, wanted: bool | None
) -> None:
    settings = msgspec.structs.replace(config(), method="fedbiad", parameters={}, collect_statistics=wanted)
    done = Simulation(
        bundle=single,
        config=settings,
        population=Population(CLIENTS, tiers=2),
        trainer=TrainerSettings("runtime"),
        root=tmp_path / "run",
        observer=Observer(),
    ).run()
    weights = load_file(done.weights)
    expected = torch_statistics(weights, 1000, (0, 1))
    off = max(np.abs(weights[name] / expected[name] - 1).max() for name in STATISTICS if name.endswith("var"))
    assert (off < 1e-4) == (wanted is None)
    said = "until devices collect" if wanted is None else "--collect-statistics has devices collect"
    assert "'fedbiad' shifts BatchNorm's statistics by dropping units" in caplog.text
    assert said in caplog.text


def without_plain_steps(manifest: Manifest) -> Manifest:
    programs = manifest.programs["onnx"]
    steps = [msgspec.structs.replace(p, variant="noise") for p in programs if p.kind == "step"]
    others = [p for p in programs if p.kind != "step"]
    return msgspec.structs.replace(manifest, programs={"onnx": (*steps, *others)})


def test_a_bundle_without_the_step_that_collects_is_refused_before_the_run(single: Bundle, tmp_path: Path) -> None:
    lacking = Bundle(single.root, without_plain_steps(single.manifest))
    settings = msgspec.structs.replace(
        config(), collect_statistics=True, method="fedbiad", parameters={"variance": 0.01}
    )
    recipe = open_recipe(settings.method, settings.parameters)
    with pytest.raises(ConfigError, match=r"train step 'plain' of width 1, which .*: export it with 1 among"):
        check_recipe(lacking, recipe, settings)
    frozen = Bundle(single.root, msgspec.structs.replace(single.manifest, momenta={}))
    with pytest.raises(ConfigError, match="leave --collect-statistics out"):
        check_recipe(frozen, recipe, settings)


def test_who_collects_unasked(single: Bundle) -> None:
    """Methods that drop units do from the start of a run, where any device could and nothing stands against it."""
    of_run = msgspec.structs.replace(config(), parameters={}, method="feddrop")

    def begun(method: str = "feddrop", manifest: Manifest = single.manifest, **more: object) -> bool | None:
        settings = {"dropout": more.pop("dropout")} if "dropout" in more else {}
        opened = open_recipe(method, settings).method
        return with_collection(msgspec.structs.replace(of_run, **more), opened, manifest).collect_statistics

    assert begun()
    assert begun(collect_statistics=False) is False
    assert begun(dropout=[0]) is begun("fedavg") is begun("fjord") is begun("heterofl") is None
    assert begun(secure=SecureAggregation(holders=2)) is begun(privacy=Privacy("central", noise=1.0)) is None
    assert begun(keep_best="accuracy") is None
    assert begun(manifest=without_plain_steps(single.manifest)) is None
    assert begun(manifest=msgspec.structs.replace(single.manifest, momenta={})) is None
    assert not collects(of_run, open_recipe("feddrop", {}).method, single.manifest)  # begun by an earlier version
    asked = msgspec.structs.replace(of_run, keep_best="accuracy", collect_statistics=True)
    with pytest.raises(ConfigError, match=r"leave --keep-best out, or give --no-collect-statistics"):
        check_recipe(single, open_recipe("feddrop", {}), asked)


@pytest.mark.parametrize("norm", [2.0, None])
def test_one_client_among_five_cannot_make_the_statistics_large(
    single: Bundle, norm: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    weights, layout = single.weights(), single.layout
    answers = StatisticsRound(ROUNDS, manifest=single.manifest, bounds=Bounds(norm=norm))
    nothing = np.zeros(sum(tensor.size for tensor in layout.parameters), np.float32)
    for i, factor in enumerate((1, 1, 2, 1, 1e30)):
        client = f"c{i}"
        answers.tasks[client] = CollectStatistics(
            "r", ROUNDS, Ref("0" * 64, 1), width=1000, batch=BATCH, seed=SEED
        )
        header = Header(
            "statistics", run="r", round=ROUNDS, version=ROUNDS, layout="", method="fedavg", client=client
        )
        header = msgspec.structs.replace(header, samples=20, values=SPARSE)
        told = weights | {name: np.full_like(weights[name], factor) for name in STATISTICS}
        frame = encode_frame(header, Pattern.full(layout), told, encode_sent(nothing, nothing > 0))
        answers.check(client, CollectedStatistics("r", ROUNDS, frame), Register(1, "t", "onnx", samples=20))
    found = answers.combined(weights)
    for name in STATISTICS:
        np.testing.assert_allclose(found[name], 1.25 if norm else 2e29, rtol=1e-3)
    assert ("'c4' are left out" in caplog.text) == bool(norm)


def fleet(address: BrokerAddress, root: Path) -> Fleet:
    agents = [AgentProcess(f"client-{i}", f"digits:{i}/{CLIENTS}", tier=i % 2) for i in range(CLIENTS)]
    return Fleet(agents, address=address, root=root)


def test_agents_collect_the_bits_of_a_simulation_though_the_coordinator_is_killed_meanwhile(
    rows: Bundle, embedded: BrokerAddress, tmp_path: Path
) -> None:
    root = tmp_path / "real"
    with fleet(embedded, tmp_path / "fleet") as agents:
        killed(rows, config(), root, embedded, (ROUNDS, "collecting"))
        real = resume(root, address=embedded, observer=Observer())
        agents.wait(timeout=30)
    theirs = simulated(rows, tmp_path / "simulated")
    assert same_weights(real.weights, theirs.weights)
    assert real.rounds[-1].collected == theirs.rounds[-1].collected
    assert real.scores == theirs.scores
    assert not real.rounds[-1].rejections


def test_a_buffered_run_collects_from_who_still_trains(
    rows: Bundle, embedded: BrokerAddress, tmp_path: Path
) -> None:
    settings = msgspec.structs.replace(config(), buffer=1, local_steps=50)
    with fleet(embedded, tmp_path / "fleet") as agents:
        done = serve(bundle=rows, config=settings, root=tmp_path / "run", address=embedded, observer=Observer())
        agents.wait(timeout=30)
    assert done.rounds[-1].collected == {1000: 700, 500: 680}


def test_a_client_of_fewer_samples_than_a_batch_counts_as_many_as_it_has(rows: Bundle) -> None:
    samples = client_samples(DataSpec.parse("digits")).take(np.arange(7))
    task = CollectStatistics("run-1", 3, Ref("0" * 64, 1), width=1000, batch=BATCH, seed=SEED)
    weights, layout = rows.weights(), rows.layout
    header = Header("model", run="run-1", round=4, version=3, layout=layout.digest, method="heterofl")
    start = decode_frame(encode_frame(header, Pattern.full(layout), weights), layout)
    made = make_statistics(
        task, client="c", model=start, runtime=open_runtime("onnx", rows), samples=samples, state={}
    )
    frame = decode_frame(made, layout)
    assert frame.header.samples == 7
    stream = Stream.of(seed=SEED, purpose="statistics", client="c", round=3)
    (batch,) = batches(samples, steps=1, size=BATCH, stream=stream, whole=True)
    sums = batch.x.reshape(BATCH, 64) @ weights["1.weight"].T + weights["1.bias"]
    np.testing.assert_allclose(frame.values["2.running_mean"][0], sums.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(frame.values["2.running_var"][0], sums.var(axis=0, ddof=1), rtol=1e-4)
    without = Bundle(rows.root, msgspec.structs.replace(rows.manifest, momenta={}))
    with pytest.raises(ConfigError, match="bring no BatchNorm statistics up to date"):
        make_statistics(
            task, client="c", model=start, runtime=open_runtime("onnx", without), samples=samples, state={}
        )


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("rows", "heterofl"),
        *(
            pytest.param(*case, marks=pytest.mark.matrix)
            for case in [("single", "heterofl"), ("rows", "fjord"), ("single", "fedavg")]
        ),
    ],
)
def test_statistics_are_the_same_whoever_takes_in_the_updates(
    rows: Bundle, single: Bundle, address: BrokerAddress, tmp_path: Path, *, kind: str, method: str
) -> None:
    """Those that steps move travel in updates, which workers add up; those collected at the end come afterwards."""
    bundle = {"rows": rows, "single": single}[kind]
    system = System(bundle, tmp_path)
    parameters = {"heterofl": {"levels": ["a", "b"]}, "fjord": {"widths": [1000, 500]}, "fedavg": {}}[method]
    settings = system.config(method, parameters=parameters, rounds=2, quorum=1.0, exact_sums=True)
    agents = [
        AgentProcess(f"client-{i}", f"digits:{i}/3", tier=i % 2, runtime="onnx", in_process=True) for i in range(3)
    ]
    alone = system.run(settings, agents, address)
    start, end = bundle.weights(), load_file(alone.weights)
    assert not any(np.array_equal(start[name], end[name]) for name in STATISTICS)
    for workers in (2,) if (kind, method) == ("rows", "heterofl") else (1, 2, 7):
        assert same_weights(alone.weights, system.run(settings, agents, address, workers=workers).weights)
