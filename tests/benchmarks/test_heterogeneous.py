"""Accuracy by width, among clients of different means and among those that can all train the whole model."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from benchmarks.by_width import SCORED, line_row, lines_of
from benchmarks.clusters import Clusters
from benchmarks.grid import Choice, Filled, Filling, entry
from benchmarks.heterogeneous import bench_heterogeneous, bench_od
from benchmarks.records import read_records
from benchmarks.runs import Final, Record, bundle_of, make_run
from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.errors import ConfigError
from edge_fl.core.pattern import prefix_units
from edge_fl.data.registry import load_dataset
from exporter.measure.cases import find_case
from exporter.measure.exported import exported

Tiny = Callable[..., Choice]
Make = Callable[..., Filling]


@pytest.mark.parametrize(
    ("clusters", "sizes"),
    [
        (Clusters(5, 1.0), [20, 20, 20, 20, 20]),
        (Clusters(5, 0.5), [60, 10, 10, 10, 10]),
        (Clusters(10, 1.0), [10] * 10),
        (Clusters(10, 0.5), [55] + [5] * 9),
    ],
)
def test_a_drop_scale_makes_the_ablest_cluster_larger(clusters: Clusters, sizes: list[int]) -> None:
    """1 - (n - 1) ds / n of the clients, and ds / n each of the others."""
    population = Population(100, clusters.count, mix=clusters.mix)
    tiers = [population.tier(i) for i in range(100)]
    assert [tiers.count(t) for t in range(clusters.count)] == sizes
    assert tiers[: clusters.count] == list(range(clusters.count))


@pytest.mark.matrix
def test_clients_train_as_their_cluster_can(tiny: Tiny, filling: Make) -> None:
    """Of ten clients eight upload all of the model and two a fifth of its units."""
    how, everyone = filling(), {"tiers": 2, "mix": (4, 1), "clients": 10, "clients_per_round": 10}
    run = entry(tiny(rounds=1), "digits", "fjord", {}, {"widths": [1000, 200]}, **everyone).runs[0]
    (measured,) = make_run(run, bundle_of(run, how.cache, str), str).rounds
    full, narrow = (measured.traffic.up[tier] for tier in (0, 1))
    assert full > 4 * narrow
    assert measured.uplink == pytest.approx(0.8 * full + 0.2 * narrow, rel=0.01)


def test_every_cluster_gets_what_it_can_run() -> None:
    ten = Clusters(10)
    assert ten.widths == (1000, 900, 800, 700, 600, 500, 400, 300, 200, 100)
    assert ten.parameters("heterofl") == {"levels": ["a", "b", "b", "b", "b", "b", "c", "c", "d", "e"]}
    assert Clusters().parameters("fedbiad+dgc") == {"dropout": [0, 200, 400, 600, 800]}
    assert Clusters().parameters("fedavg") == {}


@pytest.mark.matrix
def test_the_accuracy_at_a_width_is_that_of_the_model_cut_out(tiny: Tiny, filling: Make) -> None:
    """Its first units' own weights alone, multiplied out here, against what the record of the run says."""
    how = filling()
    bench_heterogeneous(tiny("fjord", rounds=5), how)
    (record,) = read_records(how.results, Record)
    run = record.run
    with TemporaryDirectory() as scratch:
        simulation = Simulation(
            bundle=bundle_of(run, how.cache, str),
            config=run.config(),
            population=run.population(),
            trainer=TrainerSettings("stacked"),
            root=Path(scratch) / "run",
            observer=Observer(),
        )
        simulation.run()
    weights, test = simulation.weights, load_dataset("digits").test
    assert record.final is not None
    assert list(record.final.accuracy) == list(SCORED)
    for width, accuracy in record.final.accuracy.items():
        k = prefix_units(32, width)
        hidden = test.x.reshape(len(test.y), 64)
        hidden = np.maximum(hidden @ weights["1.weight"][:k].T + weights["1.bias"][:k], 0)
        hidden = np.maximum(hidden @ weights["3.weight"][:k, :k].T + weights["3.bias"][:k], 0)
        outputs = hidden @ weights["5.weight"][:, :k].T + weights["5.bias"]
        assert accuracy == pytest.approx((outputs.argmax(axis=1) == test.y).mean(), abs=2 / len(test.y))
    assert len(set(record.final.accuracy.values())) > 1
    assert record.final.accuracy[1000] == record.rounds[-1].accuracy == record.final.unpruned


@pytest.mark.matrix
def test_methods_share_a_table_and_separate_models_a_line(tiny: Tiny, filling: Make, tmp_path: Path) -> None:
    how = filling()
    settings = [Clusters(), Clusters(5, 0.5)]
    choice = tiny("fjord", "efd", "heterofl", "fedbiad", rounds=1)
    result = bench_heterogeneous(choice, how, settings)
    result.write(tmp_path / "h.md")

    assert [(row["drop scale"], row["method"], row["models"]) for row in result.rows] == [
        (scale, method, 5 if method == "efd" else 1)
        for scale in (1.0, 0.5)
        for method in ("fjord", "efd", "heterofl", "fedbiad")
    ]
    assert (tmp_path / "h-digits.png").exists()
    assert "--clusters 5 --drop-scale 1 --drop-scale 0.5" in result.command
    fjord, separate = result.rows[:2]
    assert separate["- efd"] == fjord["reported"] == ""
    differences = [float(text) for text in str(fjord["- efd"]).split("/")]
    for width, difference in zip(("0.2", "0.4", "0.6", "0.8", "1"), differences, strict=True):
        assert difference == pytest.approx(float(str(fjord[width])) - float(str(separate[width])), abs=0.06)

    found = read_records(how.results, Record)
    assert {record.run.mix for record in found} == {(), (6, 1, 1, 1, 1)}
    assert {record.run.config().lr_drops for record in found} == {(0.5, 0.75)}
    own = [record for record in found if record.run.recipe == "efd"]
    assert [list(r.final.accuracy) for r in own if r.final] == [[width] for width in SCORED] * 2
    assert all(r.final.accuracy[r.run.scored[0]] == r.rounds[-1].accuracy for r in own if r.final)
    # A separate model is trained by all clients, of each as many units as its cluster can run.
    assert {r.in_effect["widths"][4] for r in own} == {200}


@pytest.mark.matrix
def test_separate_models_of_ordered_dropout_drop_nothing(tiny: Tiny, filling: Make) -> None:
    how, told = filling(), list[str]()
    result = bench_od(tiny("fjord", "efd", rounds=1), how, [Clusters(5), Clusters(10)])
    assert [(row["clusters"], row["method"]) for row in result.rows] == [
        ("uniform-5", "fjord"),
        ("uniform-5", "efd"),
        ("uniform-10", "fjord"),
        ("uniform-10", "efd"),
    ]
    records = read_records(how.results, Record)
    # One separate model a width, whatever FjORD draws from.
    assert [record.run.recipe for record in records] == ["fjord", *["efd"] * 5, "fjord"]
    assert [len(record.in_effect["widths"]) for record in records if record.run.recipe == "fjord"] == [5, 10]
    assert all(record.run.tiers == 1 for record in records)
    uplinks = [record.rounds[0].uplink for record in records if record.run.recipe == "efd"]
    assert uplinks == sorted(uplinks)
    bench_od(tiny("fjord", "efd", rounds=1), filling(report=told.append), [Clusters(5), Clusters(10)])
    assert not told


def test_what_is_reported_stands_beside_the_setting_it_was_measured_in() -> None:
    choice = Choice(("cifar-10",), (0,))
    columns = {"clusters": "uniform-5", "drop scale": 1.0, "method": "fjord"}
    made = entry(choice, "cifar-10", "fjord", columns, tiers=5, scored=SCORED)
    final = Final(dict(zip(SCORED, (0.8, 0.85, 0.862, 0.87, 0.848), strict=True)), 0.848, 1.0)
    run = made.runs[0]
    line = lines_of([Filled(made, (Record(run=run, in_effect=run.in_effect(), final=final),))])[0]
    row = line_row(line, [line])
    assert row["reported"] == "83.9/85.6/86.2/85.7/84.8"
    assert row["- reported"] == "-3.9/-0.6/+0.0/+1.3/+0.0"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(Clusters, 3), "2, 4, 5, 8 or 10 clusters of clients, not 3"),
        (partial(Clusters, 5, 0.0), r"drop scale is in \(0, 1\]"),
        (partial(Clusters, 5, 1.5), r"drop scale is in \(0, 1\]"),
        (partial(Clusters, 5, float("nan")), r"drop scale is in \(0, 1\]"),
        (
            partial(Population, 9, 2, mix=(1, 2, 3)),
            "mix of 2 tiers is a whole number above 0 for each, not 1, 2, 3",
        ),
        (partial(Population, 9, 2, mix=(1, 0)), "not 1, 0"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.matrix
def test_batch_norm_has_statistics_of_the_widths_that_are_scored(bundles: Path) -> None:
    bundle = exported(find_case("cifarnet", narrowed=True), ("onnx",), bundles, str, statistics=(1000, 400))
    assert bundle.manifest.statistic_widths == (1000, 400)
    assert not find_case("femnist-cnn", narrowed=True).normalised


def test_methods_and_models_that_do_not_belong_are_refused(tiny: Tiny, filling: Make) -> None:
    with pytest.raises(ConfigError, match="'heterofl' trains no nested widths"):
        bench_od(tiny("heterofl"), filling())
    with pytest.raises(ConfigError, match="'resnet18' is for cifar-10, not digits"):
        entry(tiny(), "digits", "fedavg", {}, model="resnet18")
