"""docs/protocol.md names every message field, header field, rejection code and stream purpose of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from edge_fl.wire.enrol import Enrol, Enrolled, EnrolRefused, Why
from edge_fl.wire.frame import Header
from edge_fl.wire.messages import FromDevice, ToDevice
from edge_fl.wire.sum_frame import SumHeader

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "protocol.md").read_text()
MESSAGES = sorted({*FromDevice.__args__, *ToDevice.__args__}, key=lambda cls: cls.__name__)


def rows(section: str) -> dict[str, str]:
    """The table rows of a section, by the name in their first cell."""
    text = re.search(rf"^#+ {re.escape(section)}.*?(?=^#+ |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert text is not None, section
    return {m[1]: m[0] for m in re.finditer(r"^\| `([^`]+)` \|.*$", text[0], re.MULTILINE)}


def calls() -> Iterator[ast.Call]:
    """Every call in the code of both ends, but for the methods': a method is one file and no other edit."""
    for package in ("edge_fl", "broker"):
        for path in sorted({*(ROOT / package).rglob("*.py")} - {*(ROOT / "edge_fl" / "methods").glob("*.py")}):
            yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_message_has_a_row_with_its_fields(cls: type[msgspec.Struct]) -> None:
    row = rows("4. Messages")[cls.__struct_config__.tag]
    for field in msgspec.structs.fields(cls):
        assert f"`{field.name}` " in row


def test_enrolment_has_a_row_for_each_message_and_reason() -> None:
    table = rows("6.2 Enrolment")
    for cls in (Enrol, Enrolled, EnrolRefused):
        for field in msgspec.structs.fields(cls):
            assert f"`{field.name}` " in table[cls.__struct_config__.tag]
    assert set(get_args(Why)) <= set(table)


def test_every_header_field_has_a_row() -> None:
    assert set(rows("2.1 Header")) == set(Header.__struct_fields__)


def test_every_header_field_of_a_partial_sum_has_a_row() -> None:
    assert set(rows("2.5 Partial sums")) == set(SumHeader.__struct_fields__)


def test_every_rejection_code_raised_has_a_row() -> None:
    raised = {
        call.args[0].value
        for call in calls()
        if isinstance(call.func, ast.Name)
        and call.func.id == "FrameError"
        and isinstance(call.args[0], ast.Constant)
    }
    assert {"truncated", "topic", "message"} <= raised
    assert raised <= set(rows("7. Rejection codes"))


def test_every_stream_has_a_row() -> None:
    purposes = {
        keyword.value.value
        for call in calls()
        for keyword in call.keywords
        if keyword.arg == "purpose" and isinstance(keyword.value, ast.Constant)
    }
    assert {"batches", "partition"} <= purposes
    assert purposes <= set(rows("1.2 Streams"))
