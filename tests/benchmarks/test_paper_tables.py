"""The benchmarks over grids: what their tables say of runs, of the paper, and of what is missing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.accounting import counted_bytes
from benchmarks.aggregation_rule import bench_aggregation_rule
from benchmarks.dropout_rate import bench_dropout_rate
from benchmarks.grid import Choice, Filled, Filling, entry
from benchmarks.paper_tables import METHODS_1, METHODS_2, bench_table1, bench_table2
from benchmarks.records import read_records
from benchmarks.reference import TABLE_1, TABLE_2
from benchmarks.runs import Measured, Record, Run, bundle_of
from benchmarks.tta import bench_tta, reached, timed_rows
from device_sim.simulation.links import LINKS, Link
from device_sim.simulation.time_model import Clock, Traffic
from edge_fl.core.errors import ConfigError

Tiny = Callable[..., Choice]
Make = Callable[..., Filling]


def paper_run(dataset: str, method: str, **parameters: object) -> Run:
    return entry(Choice((dataset,), (0,)), dataset, method, {}, parameters=parameters).runs[0]


def test_uploads_are_counted_as_the_paper_counts_them() -> None:
    for method in ("feddrop", "afd", "fedbiad"):
        assert counted_bytes(paper_run("fashion-mnist", method)) == 4 * (
            784 * 128 + 256 * 128 + 10 * 256
        )  # 530 KiB
    ordered = counted_bytes(paper_run("fashion-mnist", "fjord"))
    assert ordered == pytest.approx(4 * ((256 + 205 + 154 + 103) / 4 * (784 + 256) + 10 * 256))
    dense = 784 * 256 + 256 * 256 + 10 * 256
    assert counted_bytes(paper_run("fashion-mnist", "fedavg+fedpaq")) == dense
    assert counted_bytes(paper_run("fashion-mnist", "fedavg+signsgd")) == dense / 8
    assert counted_bytes(paper_run("fashion-mnist", "fedavg+dgc")) == round(0.001 * dense) * (8 + 4)
    ternary = paper_run("fashion-mnist", "fedavg+stc", **{"stc.ratio": 0.0025})
    assert counted_bytes(ternary) == round(0.0025 * dense) * 65 / 8
    assert counted_bytes(paper_run("fashion-mnist", "fedavg+randk")) is None


def test_the_papers_lines_are_those_of_the_tables() -> None:
    assert all(set(methods) == set(METHODS_1) for methods in TABLE_1.values())
    assert all({*recipes, "fedavg"} == set(METHODS_2) for recipes in TABLE_2.values())


def test_the_settings_are_the_papers() -> None:
    run = paper_run("mnist", "fedbiad")
    assert (run.clients, run.clients_per_round, run.rounds, run.partition) == (1000, 100, 60, "labels=5")
    assert (run.local_steps, run.batch, run.lr, run.parameters) == (60, 20, 0.05, {"dropout": [200]})
    assert paper_run("fashion-mnist", "fedbiad+dgc").parameters == {"dropout": [500]}
    assert paper_run("fashion-mnist", "heterofl").tiers == 3
    shorter = entry(Choice(("mnist",), (0,), rounds=30), "mnist", "fedbiad", {}).runs[0]
    assert shorter.parameters == {"dropout": [200], "stage_boundary": 27}


def test_a_table_has_the_runs_and_the_time_to_accuracy_needs_no_other(
    tiny: Tiny, filling: Make, tmp_path: Path
) -> None:
    choice, told = tiny("fedavg", "fedbiad"), list[str]()
    table = bench_table1(choice, filling())
    dense, ours = table.rows
    assert [row["method"] for row in table.rows] == ["fedavg", "fedbiad"]
    assert 0 < float(str(dense["accuracy (%)"])) <= float(str(dense["best (%)"])) < 100
    assert float(dense["dense / uplink"]) == pytest.approx(1, abs=0.01)
    assert float(ours["dense / uplink"]) > 1.5
    assert float(ours["training (CPU s)"]) > 0
    spent = sum(measured.cpu for record in read_records(filling().results, Record) for measured in record.rounds)
    assert table.notes == [f"Training took {spent / 3600:.2g} core-hours, evaluation not counted."]
    assert dense["paper's (%)"] == ""

    table.write(tmp_path / "docs" / "table1.md")
    page = (tmp_path / "docs" / "table1.md").read_text()
    assert "![Accuracy on digits against rounds, uplink and virtual time](table1-digits.png)" in page
    assert (tmp_path / "docs" / "table1-digits.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(table.json())["rows"] == list(table.rows)

    times = bench_tta(choice, filling(report=told.append), LINKS["3g"], slowdown=3.0)
    assert told == ["digits: timing local training"]
    assert [row["time (s)"] for row in times.rows] == ["not reached", "not reached"]
    assert [row["reached by"] for row in times.rows] == ["0 of 1 seeds"] * 2
    a_round, upload = (float(times.rows[0][name]) for name in ("a round (s)", "of it upload (s)"))
    assert upload == pytest.approx(8e-6 * 14_090 / 0.768, rel=0.01)  # 3,466 numbers and a header
    assert a_round > upload + float(times.rows[0]["of it training (s)"])
    assert "--link 1.6/0.768 --slowdown 3" in times.command


def at(run: Run, *accuracies: float) -> Record:
    traffic = Traffic({0: 1_000_000}, {0: 500_000})
    rounds = [Measured(accuracy, 1.0, 500_000.0, traffic, 0.1) for accuracy in accuracies]
    return Record(run=run, in_effect=run.in_effect(), dense=1_000_000, rounds=rounds)


def test_a_target_is_reached_in_its_first_round_or_not_at_all() -> None:
    two = entry(Choice(("digits",), (0, 1)), "digits", "fedavg", {"method": "fedavg"})
    clock = Clock([Link(8.0, 4.0)], (0.01,), 100)  # 1 s down, 1 s of training, 1 s up
    filled = Filled(two, (at(two.runs[0], 0.2, 0.8, 0.7), at(two.runs[1], 0.8, 0.1, 0.1)))

    found = reached(filled, clock, 0.8)
    assert found.rounds == (2.0, 1.0)
    assert found.seconds == pytest.approx((6.0, 3.0))
    assert found.mean_seconds == pytest.approx(4.5)

    found = reached(filled, clock, 0.75 + 0.06)
    assert found.seconds == (None, None)
    short = Filled(two, (filled.records[0], at(two.runs[1], 0.1, 0.1, 0.1)))
    assert reached(short, clock, 0.8).mean_seconds is None


def test_the_change_is_fedbiads_time_against_the_methods() -> None:
    choice, clock = Choice(("digits",), (0,)), Clock([Link(8.0, 4.0)], (0.01,), 100)  # 3 s a round
    slow, never, quick = (entry(choice, "digits", name, {"method": name}) for name in ("fedavg", "afd", "fedbiad"))
    group = [
        Filled(slow, (at(slow.runs[0], 0.1, 0.2, 0.3, 0.9),)),
        Filled(never, (at(never.runs[0], 0.1),)),
        Filled(quick, (at(quick.runs[0], 0.1, 0.2, 0.9),)),
    ]
    rows = timed_rows("digits", group, [clock] * 3)
    assert [row["change (%)"] for row in rows] == [pytest.approx(-25.0), "", ""]
    assert [row["time (s)"] for row in rows] == ["12.0", "not reached", "9.0"]


def test_a_recipe_by_another_name_is_the_same_run() -> None:
    choice = Choice(("fashion-mnist",), (0,))
    alone, on_fedavg = (entry(choice, "fashion-mnist", name, {}).runs[0] for name in ("stc", "fedavg+stc"))
    assert alone == on_fedavg
    assert alone.parameters["stc.ratio"] == 0.0025
    assert entry(choice, "fashion-mnist", "fjord+kd+stc", {}).runs[0].parameters["stc.ratio"] == 0.0025


def test_a_data_set_without_a_target_cannot_be_timed(filling: Make) -> None:
    with pytest.raises(ConfigError, match="no accuracy to time 'shakespeare' to"):
        bench_tta(Choice(("shakespeare",), (0,)), filling(), LINKS["5g"], 1.0)


def test_compressors_are_compared_with_dense_updates(tiny: Tiny, filling: Make) -> None:
    plain, sparse = bench_table2(tiny("fedavg", "fedavg+dgc", rounds=1), filling()).rows
    assert float(sparse["dense / uplink"]) > 3 > float(plain["dense / uplink"])
    assert float(sparse["counted ratio"]) > 1


def test_the_dropout_rate_lowers_the_uplink(tiny: Tiny, filling: Make, tmp_path: Path) -> None:
    result = bench_dropout_rate(tiny("fedbiad", rounds=1), filling(), rates=(200, 600))
    result.write(tmp_path / "rate.md")

    assert [(row["method"], row["p"]) for row in result.rows] == [
        ("fedavg", 0.0),
        ("fedbiad", 0.2),
        ("fedbiad", 0.6),
    ]
    uplinks = [float(str(row["uplink (kB)"])) for row in result.rows]
    assert uplinks == sorted(uplinks, reverse=True)
    assert (tmp_path / "rate-digits.png").exists()
    assert result.command.endswith("--rate 0.2 --rate 0.6")
    with pytest.raises(ConfigError, match="'fjord' has no dropout rate"):
        bench_dropout_rate(tiny("fjord"), filling())


@pytest.mark.matrix
def test_every_rule_is_compared_with_fedavg(tiny: Tiny, filling: Make) -> None:
    how = filling()
    result = bench_aggregation_rule(tiny(rounds=1), how, rates=(0.1,), local_steps=(3,), boundaries=(30, 0))

    assert [(row["rule"], row["scaled"], row["R_b"], row["mode"]) for row in result.rows] == [
        ("mean", "", "", ""),
        ("holders", "yes", "55", "rows"),
        ("holders", "no", "55", "rows"),
        ("zeros", "yes", "55", "rows"),
        ("zeros", "no", "55", "rows"),
        ("mean", "yes", "55", "rows"),
        ("mean", "no", "55", "rows"),
        ("holders", "yes", "0", "rows"),
        ("holders", "yes", "55", "units"),
        ("holders", "yes", "0", "units"),
    ]
    assert result.rows[0]["- FedAvg's"] == 0
    for row in result.rows:
        assert float(str(row["accuracy (%)"])) - float(row["- FedAvg's"]) == pytest.approx(
            float(str(result.rows[0]["accuracy (%)"])), abs=0.011
        )
    assert len({record.rounds[0].loss for record in read_records(how.results, Record)}) == 10
    with pytest.raises(ConfigError, match="leave --method out"):
        bench_aggregation_rule(tiny("feddrop"), filling())


@pytest.mark.matrix
def test_heterofls_clients_leave_out_the_classes_that_they_lack(tiny: Tiny, filling: Make, tmp_path: Path) -> None:
    for name, masked in (("heterofl", True), ("fedavg", False)):
        run = entry(tiny(), "digits", name, {}).runs[0]
        assert bundle_of(run, tmp_path, str).manifest.masks_labels is masked


def test_what_is_missing_is_named_and_what_failed_is_told(tiny: Tiny, filling: Make) -> None:
    failed = bench_table1(tiny("fedavg", lr=1e30), filling("failed"))
    assert failed.rows[0]["accuracy (%)"] == "failed"
    assert "lower the step size" in failed.notes[0]
    assert "1. digits, fedavg: " in failed.markdown()
    assert not failed.pictures
