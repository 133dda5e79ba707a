"""Each run of a grid is made once, whatever breaks it off, and records are those of the runs asked for."""

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from benchmarks.dropout_rate import bench_dropout_rate
from benchmarks.figures import notes_of
from benchmarks.grid import Choice, Entry, Filling, entry, fill, read_method
from benchmarks.heterogeneous import bench_heterogeneous
from benchmarks.runs import Record
from edge_fl.core.errors import ConfigError, DataError
from edge_fl.recipes.presets import PRESETS

Tiny = Callable[..., Choice]
Make = Callable[..., Filling]


def entries(choice: Choice) -> list[Entry]:
    return [entry(choice, "digits", method, {"method": method}) for method in choice.methods or ()]


def records(path: Path) -> list[Record]:
    return msgspec.json.decode(path.read_bytes(), type=list[Record])


def findings(path: Path) -> list[tuple[str, int, list[tuple[float, float, float, int]]]]:
    """What a run finds, but for the time it took."""
    return [
        (r.run.recipe, r.run.seed, [(m.accuracy, m.loss, m.uplink, m.traffic.down) for m in r.rounds])
        for r in records(path)
    ]


class Stop(Exception):  # noqa: N818
    pass


def stops_at(text: str) -> Callable[[str], None]:
    def report(told: str) -> None:
        if text in told:
            raise Stop

    return report


@pytest.mark.matrix
def test_what_was_broken_off_ends_as_what_was_not(tiny: Tiny, filling: Make) -> None:
    choice = tiny("fedavg", "fedbiad")
    whole, broken = (
        filling("whole"),
        filling("broken", report=stops_at("run 2 of 2, fedbiad on digits, seed 0: round 1 of 2")),
    )
    found, missing = fill(entries(choice), whole)
    with pytest.raises(Stop):
        fill(entries(choice), broken)
    assert [record.run.recipe for record in records(broken.results)] == ["fedavg"]
    fill(entries(choice), filling("broken"))

    assert not missing
    assert findings(broken.results) == findings(whole.results)
    assert [len(filled.records) for filled in found] == [1, 1]


def test_a_record_holds_the_curves_of_its_run(tiny: Tiny, filling: Make) -> None:
    how = filling()
    fill(entries(tiny("fedavg", "fjord")), how)
    dense, ordered = records(how.results)

    assert [len(record.rounds) for record in (dense, ordered)] == [2, 2]
    for measured in dense.rounds:
        assert 0 < measured.accuracy < 1
        assert measured.cpu > 0
        assert measured.traffic.down[0] == pytest.approx(dense.dense, abs=20)  # a header's numbers
        assert max(measured.traffic.up.values()) >= measured.uplink
    assert {tier for measured in ordered.rounds for tier in measured.traffic.up} <= {0, 1, 2, 3}
    assert ordered.in_effect["widths"][3] == 400
    assert ordered.rounds[0].uplink < dense.rounds[0].uplink


def test_a_run_may_be_looked_at_less_often(tiny: Tiny, filling: Make) -> None:
    choice = dataclasses.replace(tiny("fedavg"), rounds=5)
    seldom, often = filling("seldom"), filling("often")
    (found,), _ = fill(entries(dataclasses.replace(choice, evaluate_every=2)), seldom)
    (whole,), _ = fill(entries(choice), often)

    rounds, accuracies = found.records[0].curve
    assert rounds.tolist() == [2, 4, 5]
    assert [m.loss is None for m in found.records[0].rounds] == [True, False, True, False, False]
    assert accuracies.tolist() == whole.records[0].curve[1][rounds - 1].tolist()
    (again,), _ = fill(entries(dataclasses.replace(choice, evaluate_every=2)), often)
    assert again.records == whole.records  # which was looked at more often
    (anew,), _ = fill(entries(choice), seldom)
    assert len(anew.records[0].curve[0]) == 5
    assert len(records(seldom.results)) == 1
    assert "--evaluate-every 2" in dataclasses.replace(choice, evaluate_every=2).command("table1")


def test_a_run_is_known_by_all_it_is_made_of(tiny: Tiny, filling: Make) -> None:
    told: list[str] = []
    how = filling(report=told.append)
    choice = tiny(rounds=1)
    given = entry(choice, "digits", "feddrop", {"method": "feddrop"}, parameters={"dropout": [500]})
    fill([given], how)
    told.clear()
    # The setup's own rate is the one just given, so nothing is left to run; another is another run.
    fill([entry(choice, "digits", "feddrop", {"method": "feddrop"})], how)
    assert not told
    fill([entry(choice, "digits", "feddrop", {"method": "feddrop"}, parameters={"dropout": [400]})], how)
    assert told[0].startswith("run 1 of 1, ")

    # Records of other defaults than today's are not taken for today's.
    other = how.results.read_bytes().replace(b'"scale":true', b'"scale":false')
    how.results.write_bytes(other)
    told.clear()
    fill([given], how)
    assert told[0].startswith("run 1 of 1, ")
    assert len(records(how.results)) == 3


def test_no_run_is_begun_once_the_time_is_spent(tiny: Tiny, filling: Make) -> None:
    def slow(told: str) -> None:
        if "round" in told:
            time.sleep(1.0)

    how = filling(minutes=0.03, report=slow)
    found, missing = fill(entries(tiny("fedavg", "feddrop", seeds=(0, 1))), how)

    assert [filled.run.recipe for filled in found] == ["fedavg"]
    # Every line of a table gets its first seed before any gets its second.
    assert missing == ["digits, seed 1: fedavg", "digits, seeds 0, 1: feddrop"]
    assert len(records(how.results)) == 1


def test_without_time_what_is_known_is_shown_and_nothing_made(tiny: Tiny, filling: Make) -> None:
    for minutes in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match="from 0 on"):
            filling(minutes=minutes)
    with pytest.raises(ConfigError, match="spent before any run"):
        fill(entries(tiny("fedavg")), filling(minutes=1e-9))
    with pytest.raises(ConfigError, match="holds none of these runs"):
        fill(entries(tiny("fedavg")), filling(minutes=0.0))
    fill(entries(tiny("fedavg", evaluate_every=2)), filling())

    found, missing = fill(entries(tiny("fedavg", "feddrop")), filling(minutes=0.0))

    assert [filled.run.recipe for filled in found] == ["fedavg"]  # though it was looked at less often than asked
    assert missing == ["digits, seed 0: feddrop"]
    assert "Not run yet, for want of time, on digits, seed 0: feddrop." in notes_of(found, missing)
    assert "Some models were looked at after every 2 rounds only." in notes_of(found, missing)
    often, _ = fill(
        entries(tiny("fedavg", evaluate_every=4)), filling(minutes=0.0)
    )  # and more often than this asks
    assert not any("looked at" in note for note in notes_of(often, ()))


def test_a_file_of_other_records_is_refused(tiny: Tiny, filling: Make) -> None:
    how = filling()
    for content in ('[{"model": "digits-mlp", "size": "full"}]', "{", '[{"run": {}}]'):
        how.results.write_text(content)
        with pytest.raises(DataError, match="does not hold this benchmark's results"):
            fill(entries(tiny("fedavg")), how)
        assert how.results.read_text() == content


def test_what_makes_no_sense_is_refused_before_anything_runs(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match="no setup for the data set 'ptb'"):
        Choice(("ptb",), (0,))
    with pytest.raises(ConfigError, match="no method 'fedsgd'"):
        entries(tiny("fedsgd"))
    with pytest.raises(ConfigError, match="no compressor 'zip'"):
        entries(tiny("fedavg+zip"))
    with pytest.raises(ConfigError, match="number of rounds"):
        entries(tiny("fedavg", rounds=0))
    with pytest.raises(ConfigError, match="lr above 0"):
        entries(tiny("fedavg", lr=0.0))


def test_a_run_that_diverges_is_a_finding(tiny: Tiny, filling: Make) -> None:
    how = filling()
    (filled,), missing = fill(entries(tiny("fedavg", lr=1e30)), how)
    assert "lower the step size" in filled.failures[0]
    assert not filled.records
    assert not missing
    told: list[str] = []
    fill(entries(tiny("fedavg", lr=1e30)), filling(report=told.append))
    assert not told


@pytest.mark.parametrize(
    ("text", "recipe", "parameters"),
    [
        ("fedbiad", "fedbiad", {}),
        (
            "fedbiad+dgc dgc.ratio=0.0019 dropout=0.2,0.5",
            "fedbiad+dgc",
            {"dgc.ratio": 0.0019, "dropout": [200, 500]},
        ),
        ("fedavg server.momentum=0.5", "fedavg", {"server.momentum": 0.5}),
    ],
)
def test_a_method_is_read_with_its_parameters(text: str, recipe: str, parameters: dict[str, object]) -> None:
    found, given = read_method(text)
    assert (found, json.loads(msgspec.json.encode(given))) == (recipe, parameters)


def test_a_presets_parameters_are_there_and_may_be_changed() -> None:
    recipe, given = read_method("best-uplink tcs.warmup=3")
    assert recipe == PRESETS["best-uplink"].recipe
    assert given == {**PRESETS["best-uplink"].parameters, "tcs.warmup": 3}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fedavg mode", "'fedavg mode' is no method with parameters such as"),
        ("fedavg =1", "is no method with parameters"),
        ("fedbiad tau=2 tau=3", "each once"),
        ("fedavg colour=red", "and no 'colour'"),
        ("nothing", "There is no method 'nothing'"),
        (" ", "There is no method ''"),
        ("fedbiad dropout=2", "A share must be in"),
    ],
)
def test_what_is_no_method_with_parameters_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_method(text)


def test_what_a_table_sets_cannot_be_set_by_a_row(tiny: Tiny, filling: Make) -> None:
    with pytest.raises(ConfigError, match="This table sets 'dropout' itself: leave it out of --method"):
        bench_dropout_rate(tiny("fedbiad dropout=0.2"), filling())
    with pytest.raises(ConfigError, match="This table sets 'levels' itself"):
        bench_heterogeneous(tiny("heterofl levels=a,e"), filling())


def test_a_methods_own_parameters_go_before_the_setups_and_into_the_command(tiny: Tiny) -> None:
    choice = dataclasses.replace(tiny("feddrop dropout=0.25,0.75"), partition="labels=2", batch=10)
    (run,) = entries(choice)[0].runs
    assert (run.parameters["dropout"], run.tiers) == ((250, 750), 2)
    assert (run.partition, run.batch) == ("labels=2", 10)
    assert "--method 'feddrop dropout=0.25,0.75'" in choice.command("table1")
    assert "--partition labels=2" in choice.command("table1")


def test_a_record_says_which_code_made_it_and_a_table_when_that_has_changed(tiny: Tiny, filling: Make) -> None:
    how = filling()
    found, missing = fill(entries(tiny("fedavg+topk server.momentum=0.5")), how)
    (record,) = records(how.results)
    assert set(record.code) == {"edge_fl", "fedavg", "topk", "server"}
    assert not any("code" in note for note in notes_of(found, missing))

    other = record.code["topk"]
    how.results.write_bytes(how.results.read_bytes().replace(other.encode(), b"0123456789ab"))
    found, missing = fill(entries(tiny("fedavg+topk server.momentum=0.5")), filling(minutes=0.0))
    assert "The code of `topk` has changed since 1 of these runs." in notes_of(found, missing)
