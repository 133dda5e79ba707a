"""What runs side by side say of their settings."""

from pathlib import Path
from typing import Any

import msgspec

from edge_fl.runs.compare import cell, compare, comparison
from edge_fl.runs.config import RunConfig
from edge_fl.runs.privacy import Privacy
from edge_fl.runs.run import Run

PRIVACY = Privacy("central", noise=1.0, delta=1e-5, clip=1.0)


def run(folder: Path, method: str, parameters: dict[str, Any], **more: Any) -> Run:
    """One that has not finished a round."""
    about = {"version": "1.0", "began": str(folder), "partition": "iid", "tiers": 1} | more.pop("about", {})
    settings = {"rounds": 5, "clients_per_round": 4, "local_steps": 20, "batch": 20, "lr": 0.1, "seed": 0, **more}
    config = RunConfig(run=folder.name, method=method, parameters=parameters, about=about, **settings)
    folder.mkdir()
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    (folder / "metrics.jsonl").touch()
    return Run.open(folder)


def test_settings_in_which_runs_differ_are_told_and_nothing_else(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "a", "fedavg", {"weighting": "samples"}),
        run(tmp_path / "b", "fedbiad", {"weighting": "samples", "dropout": [500]}, lr=0.02, tiers="auto"),
        run(tmp_path / "c", "fedbiad", {"weighting": "samples", "dropout": [400]}, about={"tiers": 3}),
    ]

    rows = comparison(runs)

    assert [row["settings"] for row in rows] == [
        {"lr": 0.1, "tiers": 1},
        {"lr": 0.02, "tiers": "auto", "dropout": 0.5},
        {"lr": 0.1, "tiers": 3, "dropout": 0.4},
    ]
    told = "lr=0.02 tiers=auto dropout=0.5"
    assert cell(rows[1]["settings"]) == told
    assert told in compare(runs, tmp_path / "page.html").read_text()
    assert f"fedbiad (b) {told}" in compare(runs, tmp_path / "picture.svg").read_text()


def test_a_parameter_of_a_setting_s_name_is_told_from_it(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "a", "vardrop", {"lr": 0.001, "version": 1}, privacy=PRIVACY, lr_drops=(0.5,)),
        run(tmp_path / "b", "vardrop", {"lr": 0.01, "version": 2}, lr=0.5, test_data="x$a^{$b"),
        run(tmp_path / "c", "fedavg", {}),
    ]
    rows = comparison(runs)
    assert cell(rows[0]["settings"]) == (
        "lr=0.1 lr_drops=0.5 test_data=none privacy=(kind=central noise=1 delta=1e-05 clip=1) "
        "vardrop.lr=0.001 version=1"
    )
    assert cell(rows[2]["settings"]) == "lr=0.1 lr_drops=none test_data=none privacy=none"
    assert compare(runs, tmp_path / "picture.png").stat().st_size > 10_000


def test_a_parameter_that_another_method_lacks_is_told_where_it_is_not_the_default(tmp_path: Path) -> None:
    fjord = {"weighting": "samples", "maps": [[200, 400], [200, 400, 1000]]}
    runs = [
        run(tmp_path / "a", "fedavg+tcs", {"weighting": "samples", "tcs.global_ratio": 0.01, "tcs.bits": 5}),
        run(tmp_path / "b", "feddrop", {"weighting": "samples", "dropout": [300, 600]}),
        run(tmp_path / "c", "of_their_own", fjord),
    ]
    told = [cell(row["settings"]) for row in comparison(runs)]
    assert told == ["tcs.bits=5", "dropout=0.3,0.6", "maps=200,400,200,400,1000"]


def test_parameters_of_own_code_are_as_its_user_gave_them(tmp_path: Path) -> None:
    def own(name: str, dropout: int) -> Run:
        told = {
            "parameters": {"dropout": dropout / 1000, "rule": "holders"},
            "defaults": ["rule", *(["dropout"] if dropout == 500 else [])],
        }
        parameters = {"dropout": [dropout], "rule": "holders"}
        return run(tmp_path / name, "mine", parameters, code=(f"/{name}/mine.py:Mine",), about=told)

    runs = [own("a", 300), own("b", 500), run(tmp_path / "c", "fedavg", {})]
    assert [cell(row.get("settings")) for row in comparison(runs)] == ["dropout=0.3", "dropout=0.5", ""]
    assert all("settings" not in row for row in comparison(runs[1:]))


def test_runs_of_the_same_settings_have_no_such_column(tmp_path: Path) -> None:
    runs = [run(tmp_path / name, "fedavg", {}) for name in "ab"]
    assert all("settings" not in row for row in comparison(runs))
    assert all("settings" not in row for row in comparison(runs[:1]))
