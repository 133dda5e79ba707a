"""TCS and variational dropout on the digits: lines, bits and bytes, and what the papers' budgets come to."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest

from benchmarks.accounting import layout_of
from benchmarks.grid import Choice, Entry, Filled, Filling, entry
from benchmarks.records import read_records
from benchmarks.runs import Final, Measured, Record, bundle_of, make_run
from benchmarks.tcs import VARIANTS, bench_tcs, bits
from benchmarks.vardrop import bench_vardrop, vardrop_row
from device_sim.simulation.time_model import Traffic
from edge_fl.core.errors import ConfigError, ModelError

Tiny = Callable[..., Choice]
Make = Callable[..., Filling]


def test_budgets_are_the_papers() -> None:
    budgets = {name: variant.budget for name, variant in VARIANTS.items()}
    assert budgets["dense"] is None
    paper = {
        "tcs": 0.363,
        "tcs-l2": 0.1815,
        "tcs-l4": 0.0907,
        "tcs-l4-q5": 0.01675,
        "tcs-lf": 0.363,
        "top-k": 0.41,
    }
    for name, theirs in paper.items():
        assert budgets[name] == pytest.approx(theirs, rel=0.01), name


@pytest.mark.matrix
def test_variants_make_the_same_local_steps_and_bits_are_those_of_frames(
    tiny: Tiny, filling: Make, tmp_path: Path
) -> None:
    how, told = filling(), list[str]()
    names = ("centralised", "dense", "top-k", "tcs", "tcs-cold", "tcs-l4-q5")
    choice = tiny(rounds=8, clients=4, local_steps=None)
    result = bench_tcs(choice, how, names)
    result.write(tmp_path / "tcs.md")
    rows = {str(row["variant"]): row for row in result.rows}
    runs = {
        str(row["variant"]): record
        for row, record in zip(result.rows, read_records(how.results, Record), strict=True)
    }

    assert tuple(rows) == names
    central = runs.pop("centralised").run
    assert (central.rounds, central.clients, central.local_steps, central.batch) == (8, 1, 2, 128)
    assert central.lr == runs["dense"].run.lr / 2
    assert (rows["centralised"]["H"], rows["centralised"]["bits"], rows["centralised"]["down"]) == ("", "", "")
    assert {record.run.rounds * record.run.local_steps for record in runs.values()} == {8}
    assert all((r.run.clients, r.run.clients_per_round, r.run.batch) == (4, 4, 64) for r in runs.values())
    assert all(r.run.config().lr_drops == (0.5, 0.75) for r in runs.values())
    assert (tmp_path / "tcs-digits.png").exists()
    assert "--variant tcs-l4-q5" in result.command

    assert float(str(rows["dense"]["bits"])) == pytest.approx(32, rel=0.01)
    assert rows["dense"]["paper's budget"] == ""
    assert (rows["tcs"]["paper's on CIFAR-10 (%)"], rows["tcs"]["difference"]) == ("92.44", "")
    # A warm-up of one round is dense, and the second column is of the rounds after it.
    tcs, warm = rows["tcs"], runs["tcs"]
    assert warm.run.parameters == {"tcs.warmup": 1}
    shares = [32 * m.uplink / warm.dense for m in warm.rounds]
    assert shares[0] == pytest.approx(32, rel=0.01)
    assert float(str(tcs["bits"])) == pytest.approx(mean(shares), abs=1e-4)
    assert float(str(tcs["after warm-up"])) == pytest.approx(mean(shares[1:]), abs=1e-4)
    cold = rows["tcs-cold"]
    assert cold["bits"] == cold["after warm-up"]
    # Four local steps to a round.
    quantised = runs["tcs-l4-q5"]
    assert float(str(rows["tcs-l4-q5"]["bits"])) == pytest.approx(
        mean(8 * m.uplink / quantised.dense for m in quantised.rounds), abs=1e-4
    )
    assert float(rows["tcs"]["down"]) > float(rows["dense"]["down"])

    bench_tcs(choice, filling(report=told.append), names)
    assert not told


def test_statistics_are_left_out_of_the_rounds_that_send_them() -> None:
    own = 4 * sum(tensor.size for tensor in layout_of("resnet18-16").tensors if tensor.role == "statistic")
    choice = Choice(("cifar-10",), (0,), model="resnet18-16")
    made = entry(choice, "cifar-10", "tcs", {"variant": "tcs-l4-q5-s10"}, {}, rounds=4, statistics_every=3)
    run = made.runs[0]
    sizes = [1000.0 + own * (number in (3, 4)) for number in range(1, 5)]
    rounds = [Measured(None, None, size, Traffic({0: 100}, {0: 12}), 0.1) for size in sizes]
    filled = Filled(made, (Record(run=run, in_effect=run.in_effect(), dense=own + 32_000, rounds=rounds),))
    assert bits(filled, statistics=False) == pytest.approx(1 / run.local_steps)
    assert bits(filled) == pytest.approx(32 * (1000 + own / 2) / (own + 32_000) / run.local_steps)


def test_a_run_that_is_all_warm_up_has_no_bits_after_it() -> None:
    made = entry(Choice(("digits",), (0,)), "digits", "tcs", {"variant": "tcs"}, {"tcs.warmup": 1}, rounds=1)
    run = made.runs[0]
    assert bits(Filled(made, (Record(run=run, in_effect=run.in_effect(), dense=1),)), warm=False) is None


@pytest.mark.matrix
def test_what_vardrop_leaves_is_told(tiny: Tiny, filling: Make, tmp_path: Path) -> None:
    how = filling()
    result = bench_vardrop(tiny(rounds=6, clients=4, local_steps=None, lr=None), how)
    result.write(tmp_path / "v.md")
    dense, sparse = read_records(how.results, Record)
    assert [row["weights"] for row in result.rows] == ["dense", "sparse"]
    assert (tmp_path / "v-digits.png").exists()
    assert (sparse.run.clients, sparse.run.clients_per_round) == (4, 4)
    assert (sparse.run.local_steps, sparse.run.batch, sparse.run.lr) == (1, 128, 1.0)
    assert dense.final is not None
    assert dense.final.nonzero == 1
    assert dense.final.accuracy == {1000: dense.rounds[-1].accuracy}
    assert {row["paper's traffic (%)"] for row in result.rows} == {""}


@pytest.mark.matrix
def test_pruning_is_scored_before_and_after(tiny: Tiny, filling: Make) -> None:
    """Rates that pass a low threshold within the run: what is left are the biases, and no accuracy but chance."""
    how = filling()
    parameters = {"threshold": -5.0, "start": [-8.0, -8.0], "rate_lr": 0.1, "lr": 0.01}
    alone = {"clients": 3, "clients_per_round": 3, "partition": "iid", "local_steps": 1, "batch": 128, "lr": 1.0}
    run = entry(tiny(rounds=40), "digits", "vardrop", {}, parameters, scored=(1000,), **alone).runs[0]
    record = make_run(run, bundle_of(run, how.cache, str), str)
    assert record.final is not None
    assert record.final.nonzero == pytest.approx((32 + 32 + 10) / 3466)
    assert record.final.accuracy[1000] == record.rounds[-1].accuracy < 0.2
    assert record.final.unpruned > 0.4
    assert record.rounds[-1].uplink < record.rounds[0].uplink


def test_the_papers_numbers_stand_beside_ours() -> None:
    made = entry(Choice(("mnist",), (0,)), "mnist", "vardrop", {"weights": "sparse"}, model="cifarnet")
    run = made.runs[0]
    assert run.model == "cifarnet"
    assert entry(Choice(("mnist",), (0,)), "mnist", "vardrop", {}, model="mnist-mlp").runs[0].model == ""
    final = Final({1000: 0.9735}, 0.98, 0.029)
    rounds = [Measured(0.9735, 0.1, uplink, Traffic({0: 100}, {0: 12}), 0.1) for uplink in (20.0, 10.0)]
    record = Record(run=run, in_effect=run.in_effect(), dense=100, rounds=rounds, final=final)
    row = vardrop_row(Filled(made, (record,)))
    assert row["paper's non-zeros (%)"] == "1.9"
    differences = [row[f"- {name}"] for name in ("accuracy", "non-zeros", "traffic")]
    assert differences == pytest.approx([-1.0, 1.0, 3.4])
    assert (row["before (%)"], row["last round (%)"], row["down (%)"]) == ("98.00", "10.00", "100.00")


def test_statistics_are_sent_in_the_last_round_and_then_collected(
    filling: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Entry] = []
    monkeypatch.setattr("benchmarks.tcs.fill", lambda entries, how: (made.extend(entries) or [], []))
    choice = Choice(("cifar-10",), (0,), None, 250, model="resnet18-16")
    result = bench_tcs(choice, filling(), ("tcs-l4-q5", "tcs-l4-q5-collected"))
    each, collected = (entry.runs[0] for entry in made)
    assert (each.statistics_every, each.config().collect_statistics) == (1, None)
    assert (collected.statistics_every, collected.config().collect_statistics) == (63, True)
    assert "send BatchNorm's statistics in the last round alone" in result.about

    bench_tcs(choice, filling())
    assert not any(entry.runs[0].collect_statistics for entry in made[2:])


def test_what_makes_no_sense_is_refused(tiny: Tiny, filling: Make) -> None:
    with pytest.raises(ConfigError, match="no variant 'tcs-l8' of TCS; there are centralised, dense,"):
        bench_tcs(tiny(), filling(), ("tcs-l8",))
    with pytest.raises(ConfigError, match="collects BatchNorm's statistics, of which 'digits-mlp' has none"):
        bench_tcs(tiny(), filling(), ("dense", "tcs-l4-q5-collected"))
    with pytest.raises(ConfigError, match="'resnet18' is for cifar-10, not digits"):
        bench_vardrop(dataclasses.replace(tiny(), model="resnet18"), filling())
    with pytest.raises(ModelError, match="no model 'lenet'"):
        bench_tcs(dataclasses.replace(tiny(), model="lenet"), filling(), ("dense",))


def test_the_step_size_rises_where_that_is_asked_for(tiny: Tiny, filling: Make) -> None:
    how = filling()
    result = bench_tcs(tiny(rounds=61, clients=2, local_steps=None), how, ("centralised", "dense"), rises=True)
    central, dense = (record.run.config() for record in read_records(how.results, Record))
    assert (central.lr_warmup, dense.lr_warmup) == (0, 2)
    assert dense.lr_of(1) == pytest.approx(dense.lr / 2)
    assert result.command.endswith("--variant dense --rise")
