"""What coordinator and workers say comes out of a pipe as it went in."""

import math
import os
from pathlib import Path

import msgspec
import pytest

from broker.held_update import HeldUpdate
from broker.workers.jobs import (
    Added,
    AddUp,
    Answer,
    Failed,
    Fetch,
    Fetched,
    Forget,
    Hears,
    Job,
    Kept,
    Offline,
    Ready,
    Rejected,
    Resume,
    Wants,
    decode_answers,
    decode_jobs,
    encode,
)
from edge_fl.aggregation.bounds import Clip, Size
from edge_fl.aggregation.exact_sums import Counted
from edge_fl.core.content import Missing, ref_of
from edge_fl.core.errors import FrameError
from edge_fl.wire.messages import Clipping, Task
from edge_fl.wire.sum_frame import SumHeader

PATH = Path(os.fsdecode(b"/runs/\xff name/1.frames"))  # which is no UTF-8
TASK = Task("r", 1, 0, ref_of(b"model"), "fedbiad", {"dropout": [500], "p": 0.5}, 1, 20, 0.1, 0, 0)
FETCH = Fetch("a", ref_of(b"x"), PATH, 1 << 40, TASK, 3, 1000, math.inf, b"shared", 7)
JOBS: list[Job] = [
    FETCH,
    msgspec.structs.replace(FETCH, task=msgspec.structs.replace(TASK, clipping=Clipping(0.5), withheld=True)),
    Forget(frozenset({"a", "b"})),
    Resume(),
    AddUp(
        SumHeader("r", 1, "0" * 64, 1, 1, (61, 0)),
        b"shared",
        (
            (Kept(PATH, 5, 9), Counted(2**61, 0.1, Clip(0.3, 1.0))),
            (Kept(PATH, 0, 1), Counted(1, 1.0, Clip(1.0, 1.0))),
        ),
    ),
]
ANSWERS: list[Answer] = [
    Ready(),
    Ready("why"),
    Hears(),
    Wants("a", Missing("0" * 64, (0, 3))),
    Fetched("a", 7, "samples", "why"),
    Fetched(
        "a",
        8,
        samples=5,
        loss=-math.inf,
        held=HeldUpdate(b"f", 3, b"\x01", ("w", 0.1), Size(5.0, 0.1, 0.0), {"w": 1e-40}),
    ),
    Rejected("a", "chunk", "why", 3),
    Added(b"sum"),
    Added(b"", "why"),
    Offline("why"),
    Failed("why"),
]


def test_jobs_come_out_as_they_went_in() -> None:
    assert decode_jobs(encode(JOBS)) == JOBS


def test_answers_come_out_as_they_went_in() -> None:
    assert decode_answers(encode(ANSWERS)) == ANSWERS


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xa1\xff", b"\x91\x81\xa4type\xa4Nope", b"\x91" * 5000, encode(JOBS)[:-1]]
)
def test_anything_else_cannot_be_read(data: bytes) -> None:
    for decode in (decode_jobs, decode_answers):
        with pytest.raises(FrameError, match=r"The message cannot be read"):
            decode(data)
