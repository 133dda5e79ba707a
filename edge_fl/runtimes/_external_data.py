"""Refuses ONNX programs that name files: onnxruntime would read them, and their bytes would come back in an update.

A tensor of an ONNX model may lie in another file (``data_location``, ``external_data``). This module walks the protobuf
of a model, of which it knows the fields that lead to tensors, without the package onnx, which devices do not carry.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from edge_fl.core.errors import BundleError

__all__ = ["refuse_external_data"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_DEPTH = 64  # of graphs within graphs
_ORT_MARK = slice(4, 8), b"ORTM"  # onnxruntime's other format, a flatbuffer

_FIELDS: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""Which fields of a message hold messages that may hold tensors (onnx.proto3)."""
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of a tensor


class _Field(NamedTuple):
    number: int
    value: int  # of a varint, 0 of others
    start: int
    end: int  # of the bytes of a message, a string or bytes; start == end of others
    nested: bool


def refuse_external_data(program: bytes, where: str) -> None:
    """Raise BundleError where ``program`` is no ONNX protobuf, or names a file; ``where`` says which it is."""
    place, mark = _ORT_MARK
    if program[place] == mark:
        raise BundleError(f"{where} is no ONNX protobuf: export the model anew.")
    try:
        _walk(program, 0, len(program), "model", _MOST_DEPTH)
    except _NamesFileError:
        raise BundleError(f"{where} reads another file, which no program may: export the model anew.") from None
    except ValueError as error:
        raise BundleError(f"{where} is no ONNX protobuf ({error}): export the model anew.") from error


class _NamesFileError(Exception):
    """A tensor lies in another file."""


def _walk(data: bytes, start: int, end: int, kind: str, depth: int) -> None:
    if not depth:
        raise ValueError("its graphs lie too deep in each other")
    children = _FIELDS[kind]
    for field in _fields(data, start, end):
        if kind == "tensor" and (
            field.number == _EXTERNAL_DATA or (field.number == _DATA_LOCATION and (field.value or field.nested))
        ):
            raise _NamesFileError
        if field.number in children:
            if not field.nested:
                raise ValueError(f"field {field.number} of a {kind} is no message")
            _walk(data, field.start, field.end, children[field.number], depth - 1)


def _fields(data: bytes, start: int, end: int) -> Iterator[_Field]:
    at = start
    while at < end:
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ValueError("a field has no number")
        value, first = 0, at
        if wire == _VARINT:
            value, at = _varint(data, at, end)
            first = at
        elif wire in (_FIXED64, _FIXED32):
            at = first = at + (8 if wire == _FIXED64 else 4)
        elif wire == _BYTES:
            length, first = _varint(data, at, end)
            at = first + length
        else:
            raise ValueError(f"wire type {wire}")
        if at > end:
            raise ValueError("it is cut off")
        yield _Field(number, value, first, at, wire == _BYTES)


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number without end" if at < end else "it is cut off")
