"""Names of ours, of installed packages, and of a person's own: found, or refused in one sentence."""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from edge_fl.core import registry
from edge_fl.core.errors import ConfigError, DataError
from edge_fl.core.registry import load_object
from edge_fl.data.sources.base import open_source
from edge_fl.methods.base import METHODS, open_method
from edge_fl.metrics.base import metric_names, open_metric

GOOD = "from edge_fl.methods.fedavg import METHOD\n\nclass Mine(METHOD):\n    name = 'mine'\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Packages that bring a good method, broken ones, and one called as one of ours."""
    (tmp_path / "good_package.py").write_text(GOOD)
    (tmp_path / "broken_package.py").write_text("1 / 0\n")
    points = {
        "edge_fl.methods": [
            ("mine", "good_package:Mine"),
            ("broken", "broken_package:Mine"),
            ("twice", "good_package:Mine"),
            ("twice", "broken_package:Mine"),
            ("fedavg", "good_package:Mine"),
        ],
        "edge_fl.metrics": [("bad-score", "broken_package:Score")],
        "edge_fl.sources": [("bad", "broken_package:Source")],
    }

    def entry_points(*, group: str) -> list[metadata.EntryPoint]:
        return [metadata.EntryPoint(name, value, group) for name, value in points.get(group, [])]

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry.metadata, "entry_points", entry_points)
    registry._entry_points.cache_clear()
    yield tmp_path
    registry._entry_points.cache_clear()
    METHODS._used.clear()


def test_a_method_of_an_installed_package_is_found_by_its_name(installed: Path) -> None:
    assert {"mine", "fedbiad"} <= set(METHODS.names())
    assert type(open_method("mine", {})).__module__ == "good_package"
    assert open_method("fedbiad", {}).name == "fedbiad"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("broken", "'broken_package' cannot be imported: ZeroDivisionError"),
        ("twice", "Two packages bring a method 'twice'"),
        ("fedavg", "edge-fl and good_package:Mine both bring a method 'fedavg'"),
        ("unknown", "There is no method 'unknown'; there are afd, "),
    ],
)
def test_what_is_installed_but_broken_is_refused_when_it_is_asked_for(
    installed: Path, name: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        open_method(name, {})


def test_a_broken_score_or_source_of_a_package_ends_nothing_but_itself(installed: Path) -> None:
    assert {"accuracy", "bad-score"} <= set(metric_names())
    assert open_metric("accuracy").name == "accuracy"
    with pytest.raises(ConfigError, match="cannot be imported"):
        open_metric("bad-score")
    with pytest.raises(DataError, match="cannot be imported"):
        open_source("bad:5")
    assert len(open_source("digits:0/10").samples().y)


def test_a_file_is_one_module_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "once.py").write_text("class Thing: pass\nclass Other: pass\n")
    monkeypatch.chdir(tmp_path)
    thing, other = load_object("once.py:Thing"), load_object(f"{tmp_path}/once.py:Other")
    assert thing.__module__ == other.__module__


@pytest.mark.parametrize(
    "spec", ["", "x", ":Mine", "mine.py:", "mine.py:1x", "gone.py:Mine", "no.such.module:Mine"]
)
def test_a_spec_of_nothing_is_one_sentence(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"names no object|There is no Python file|cannot be imported"):
        load_object(spec)


def test_a_method_without_parameters_is_told_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(
        "from edge_fl.methods.base import Method\n"
        "class Bare(Method):\n    name = 'bare'\n    rule = mode = counts = local = None\n"
    )
    with pytest.raises(ConfigError, match="lacks Parameters"):
        METHODS.use(f"{tmp_path}/bare.py:Bare")
