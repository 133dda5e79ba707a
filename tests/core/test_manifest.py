"""A manifest from elsewhere: what is out of range is refused before anything is allocated for it."""

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from edge_fl.core.bundle import SCHEMA, File, Manifest, Program, parse_manifest
from edge_fl.core.errors import BundleError
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Block, Layout, Segment, Tensor

UNITS, FREE = (Segment("h"),), (Segment(None, 3),)
MANIFEST = Manifest(
    schema=SCHEMA,
    name="m",
    dataset="",
    classes=4,
    input=Input((3,), "float32"),
    target=Input((), "int64"),
    loss="cross_entropy",
    layout=Layout((Block("h", 4),), (Tensor("h.weight", (4, 3), (UNITS, FREE), (UNITS, FREE)),)),
    programs={"onnx": (Program("onnx/step.onnx", "step", ("x",), ("loss",)),)},
    parity={},
    tools={},
    files={"onnx/step.onnx": File("0" * 64, 10)},
)


def parsed(change: Callable[[Any], object]) -> Manifest:
    value = json.loads(msgspec.json.encode(MANIFEST))
    change(value)
    return parse_manifest(json.dumps(value).encode(), where="m")


def wide(size: int) -> Callable[[Any], object]:
    """A block of so many units, and its tensor."""

    def change(value: Any) -> None:
        value["layout"]["blocks"][0]["size"] = size
        value["layout"]["tensors"][0]["shape"][0] = size

    return change


def test_as_it_is() -> None:
    assert parsed(lambda value: None) == MANIFEST


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (wide(2**40), "units, and 2147483648 is the most"),
        (wide(2**30), "numbers, and 2147483648 is the most"),
        (wide(10**30), "is the most"),
        (wide(0), "no unit"),
        (wide(-1), "no unit"),
        (
            lambda v: v["layout"].update(blocks=[{"name": f"b{i}", "size": 1} for i in range(70_000)]),
            "too many blocks",
        ),
        (
            lambda v: v["layout"]["tensors"][0]["units"][0].extend(v["layout"]["tensors"][0]["units"][0] * 70_000),
            "segm",
        ),
        (lambda v: v["layout"]["tensors"][0]["shape"].append(0), "another rank"),
        (lambda v: v["input"].update(shape=[2**40]), "a sample has 1 to"),
        (lambda v: v["input"].update(shape=[2**20, 2**20]), "a sample has 1 to"),
        (lambda v: v["target"].update(shape=[-1]), "a sample has 1 to"),
        (lambda v: v.update(classes=2**40), "classes"),
        (lambda v: v.update(classes=-1), "classes"),
        (lambda v: v.update(statistic_widths=[0]), "a width is"),
        (lambda v: v["files"]["onnx/step.onnx"].update(size=2**40), "a size of"),
        (lambda v: v["files"]["onnx/step.onnx"].update(size=-1), "a size of"),
        (lambda v: v["files"].update({"../evil": v["files"]["onnx/step.onnx"]}), "cannot be a bundle's"),
        (lambda v: v["files"].clear(), "gives no checksum"),
    ],
)
def test_what_is_out_of_range_is_refused(change: Callable[[Any], object], sentence: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BundleError, match=sentence):
            parsed(change)
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("inputs", "batch"), [((), None), (("frozen.nothing", "x"), None), (("x", "y"), None), (("x",), 1 << 40)]
)
def test_a_program_of_features_takes_frozen_tensors_and_samples(
    inputs: tuple[str, ...], batch: int | None
) -> None:
    program = Program("f.onnx", "features", inputs, ("features",), batch=batch)
    with pytest.raises(ValueError, match="a program of features takes"):
        msgspec.structs.replace(MANIFEST, programs={"onnx": (program,)})
