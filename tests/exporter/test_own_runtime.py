"""A runtime of an installed package: exported for, and opened, by its name alone."""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from torch import nn

from edge_fl.core import registry
from edge_fl.core.errors import RuntimeMissingError
from edge_fl.core.inputs import Input
from edge_fl.core.pattern import Pattern
from edge_fl.runtimes.base import RUNTIMES, open_runtime
from exporter.export import export_bundle
from exporter.lower import LOWERINGS
from exporter.target import Target

PACKAGE = """
from edge_fl.runtimes.onnx import RUNTIME
from exporter.lower.onnx import lower

class Mine(RUNTIME):
    name = "mine"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_runtime.py").write_text(PACKAGE)
    points = {"edge_fl.runtimes": "my_runtime:Mine", "edge_fl.lowerings": "my_runtime:lower"}

    def entry_points(*, group: str) -> list[metadata.EntryPoint]:
        return [metadata.EntryPoint("mine", points[group], group)] if group in points else []

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry.metadata, "entry_points", entry_points)
    monkeypatch.setattr(RUNTIMES, "_used", {})
    monkeypatch.setattr(LOWERINGS, "_used", {})
    registry._entry_points.cache_clear()
    yield
    registry._entry_points.cache_clear()


@pytest.mark.usefixtures("installed")
def test_a_runtime_of_a_package_is_exported_for_and_opened(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    target = Target("a model", "", Input((6,), "float32"), 3, runtimes=("mine",))
    bundle = export_bundle(model, target, tmp_path / "bundle")
    opened = open_runtime("mine", bundle)
    assert type(opened).__name__ == "Mine"
    assert opened.train_step(Pattern.full(bundle.layout), 4) is not None


def test_an_unknown_runtime_is_refused_with_those_there_are() -> None:
    with pytest.raises(RuntimeMissingError, match=r"There is no runtime 'mine'; there are .*onnx"):
        RUNTIMES.find("mine")
