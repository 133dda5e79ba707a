"""A manifest comes over the network too: whatever its bytes, the worst they can do is to be refused."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.bundle import SCHEMA, Cost, File, Manifest, Parity, Program, parse_manifest
from edge_fl.core.errors import BundleError
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Block, Layout

MANIFEST = Manifest(
    schema=SCHEMA,
    name="m",
    dataset="digits",
    classes=10,
    input=Input((1, 8, 8), "float32"),
    target=Input((), "int64"),
    loss="cross-entropy",
    layout=Layout((Block("h", 3),), ()),
    programs={"onnx": (Program("onnx/step.onnx", "step", ("x",), ("loss",)),)},
    parity={"onnx": Parity(5, 1e-7, 1e-7)},
    tools={"torch": "2.13.0"},
    costs=(Cost(1000, 12, 30), Cost(500, 6)),
    class_names=tuple("0123456789"),
    metadata={"team": "vision"},
    files={"onnx/step.onnx": File("0" * 64, 10)},
)
RAW = msgspec.json.encode(MANIFEST)


def with_field(name: str, value: object) -> bytes:
    fields: dict[str, Any] = msgspec.to_builtins(MANIFEST)
    return msgspec.json.encode(fields | {name: value})


def test_a_manifest_is_read() -> None:
    assert parse_manifest(RAW, where="here") == MANIFEST


@given(st.binary(max_size=100) | st.text(max_size=100).map(str.encode))
def test_arbitrary_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(BundleError, match=r"^'here' "):
        parse_manifest(raw, where="here")


@given(st.data())
def test_an_altered_manifest_is_refused_or_read(data: st.DataObject) -> None:
    raw = bytearray(RAW)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + 4] = data.draw(st.binary(max_size=8))
    try:
        manifest = parse_manifest(bytes(raw), where="here")
    except BundleError:
        return
    assert isinstance(manifest, Manifest)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"schema": 2, "name": ' + b"[" * 100_000,
        b'{"schema": 3}',
        b"{}",
        b"[]",
        with_field("surplus", 1),
        with_field("layout", {"blocks": [{"name": "h", "size": 0}], "tensors": []}),
        with_field(
            "programs", {"onnx": [{"file": "elsewhere.onnx", "kind": "step", "inputs": [], "outputs": []}]}
        ),
        with_field("files", {"onnx/step.onnx": {"sha256": "0" * 63, "size": 1}}),
        with_field("files", {"onnx/step.onnx": {"sha256": "0" * 64, "size": -1}}),
        with_field("costs", [{"width": 0, "parameters": 1}]),
        with_field("costs", [{"width": 500, "parameters": 1, "macs": -1}]),
        with_field("class_names", ["one", "two"]),
        with_field("metadata", {"version": 3}),
        with_field("batch_norm", "per-width"),
        with_field("statistic_widths", [1000]),
    ],
    ids=[
        "deep",
        "schema",
        "empty",
        "list",
        "surplus",
        "layout",
        "program",
        "sha256",
        "size",
        "width",
        "macs",
        "names",
        "metadata",
        "statistics",
        "statistic-widths",
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(raw: bytes) -> None:
    with pytest.raises(BundleError):
        parse_manifest(raw, where="here")


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/etc/passwd",
        "../x",
        "a/../x",
        "a//b",
        "a/",
        "a\\b",
        "a\0b",
        "a\nb",
        ".hidden",
        "manifest.json",
    ],
)
def test_a_file_that_cannot_be_a_bundles_is_refused(name: str) -> None:
    files = {"onnx/step.onnx": {"sha256": "0" * 64, "size": 1}, name: {"sha256": "0" * 64, "size": 1}}
    with pytest.raises(BundleError, match="cannot be a bundle's"):
        parse_manifest(with_field("files", files), where="here")
