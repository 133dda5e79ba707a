"""The table of support: every case builds, the generator measures and refuses, and the page is its output."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.support.case import CLASSES, SupportCase
from benchmarks.support.suites import SUITES
from benchmarks.support.table import bench_support
from benchmarks.support.trial import Limits, Trial
from exporter.lower import LOWERINGS

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
CASES = SUITES["layers"].cases
LIMITS = Limits(seconds=250, memory_mb=4_000)


@pytest.mark.parametrize("suite", SUITES)
def test_no_two_cases_have_one_name(suite: str) -> None:
    names = [case.name for case in SUITES[suite].cases]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_builds_and_maps_its_input_to_the_classes(case: SupportCase) -> None:
    integers = case.input.dtype == "int64"
    shape = (3, *case.input.shape)
    x = torch.randint(CLASSES, shape) if integers else torch.randn(shape)

    assert case.build()(x).shape == (3, CLASSES)


_REFUSED = "AdaptiveMaxPool2d, windows of two sizes"


def test_the_page_names_its_command_its_runtimes_and_every_case() -> None:
    page = PAGE.read_text()
    header = next(line for line in page.splitlines() if line.startswith("| layer or operation"))
    rows = {line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")}

    assert f"`{SUITES['layers'].command}`" in page
    assert set(header.strip("| ").split(" | ")[2:]) <= set(LOWERINGS.names())
    assert {case.name for case in CASES} <= rows


@pytest.mark.matrix
def test_a_case_is_proven_or_refused_with_its_sentence(tmp_path: Path) -> None:
    result = bench_support(
        "layers", ["onnx"], tmp_path / "r.json", lambda _: None, names=["Linear", _REFUSED], limits=LIMITS
    )
    linear, refused = result.rows

    difference, size = str(linear["onnx"]).split(", ")
    assert 0 < float(difference) <= 1e-4
    assert float(size.removesuffix(" kB")) > 0
    assert linear["droppable units"] == "8 of `0`, 7 of `2`"
    assert refused["onnx"] == "no (1)"
    assert "adaptive_max_pool2d" in result.notes[0]
    assert "1. " + result.notes[0] in result.markdown()


@pytest.mark.matrix
def test_what_was_tried_is_not_tried_again_unless_the_exporter_changed(tmp_path: Path) -> None:
    results, said = tmp_path / "r.json", list[str]()
    names = [_REFUSED, "InstanceNorm2d"]
    bench_support("layers", ["onnx"], results, said.append, names=names[:1], limits=LIMITS)
    bench_support("layers", ["onnx"], results, said.append, names=names, limits=LIMITS)
    assert said == [f"{_REFUSED}, onnx", "InstanceNorm2d, onnx"]

    results.write_bytes(results.read_bytes().replace(_digest(results), b"0" * 12))
    bench_support("layers", ["onnx"], results, said.append, names=names, limits=LIMITS)
    assert len(said) == 4


@pytest.mark.matrix
@pytest.mark.parametrize(
    "limits", [pytest.param(replace(LIMITS, seconds=0.1), marks=pytest.mark.matrix), replace(LIMITS, memory_mb=0)]
)
def test_an_export_that_takes_too_long_or_too_much_is_ended_and_may_be_tried_again(
    limits: Limits, tmp_path: Path
) -> None:
    results, said = tmp_path / "r.json", list[str]()
    ended = bench_support("layers", ["onnx"], results, said.append, names=["Linear"], limits=limits)
    again = bench_support("layers", ["onnx"], results, said.append, names=["Linear"], limits=LIMITS)

    assert ended.rows[0]["onnx"] == "no (1)"
    assert (len(again.notes), len(said)) == (0, 2)


def _digest(results: Path) -> bytes:
    import msgspec

    return msgspec.json.decode(results.read_bytes(), type=list[Trial])[0].exporter.encode()
