"""What a coordinator and its workers say to each other, and how.

A worker is started with a pickled :class:`Start`. What follows is msgpack: to pickle a task takes 0.1 ms.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from broker.acceptance import Expected, expected_update
from broker.held_update import HeldUpdate
from broker.update_file import read_update
from edge_fl.aggregation.exact_sums import Counted
from edge_fl.core.content import Missing, Ref
from edge_fl.core.layout import Layout
from edge_fl.core.unreadable import decoded
from edge_fl.recipes.recipe import Recipe
from edge_fl.transport.address import BrokerAddress
from edge_fl.wire.messages import Task
from edge_fl.wire.sum_frame import SumHeader

__all__ = [
    "AddUp",
    "Added",
    "Answer",
    "Counting",
    "Failed",
    "Fetch",
    "Fetched",
    "Forget",
    "Hears",
    "Job",
    "Kept",
    "Offline",
    "Ready",
    "Rejected",
    "Resume",
    "Start",
    "Wants",
    "decode_answers",
    "decode_jobs",
    "encode",
]


@dataclass(frozen=True)
class Start:
    """What a worker needs to begin: it is number ``number`` of the ``run``, from 1 on.

    ``holds`` says whether it is to tell of updates what adding them up takes.
    """

    number: int
    run: str
    bundle: Path
    method: str
    parameters: dict[str, object]
    code: tuple[str, ...]
    address: BrokerAddress
    fleet: str
    timeout: float
    holds: bool


class _Saying(msgspec.Struct, frozen=True, tag=True):
    """Something that is said, told apart by its name."""


class Fetch(_Saying, frozen=True):
    """Fetch the update ``ref`` of ``client`` into the file at ``path`` from ``offset`` on, and check it.

    ``task`` is what the client was asked, of a model of ``version``. The client registered ``samples`` samples, and may
    change a parameter by ``max_change``. ``shared`` is what the compressor gave out with the model.
    ``number`` tells jobs apart: a client may offer the same update again.
    """

    client: str
    ref: Ref
    path: Path
    offset: int
    task: Task
    version: int
    samples: int
    max_change: float
    shared: bytes
    number: int = 0

    def expected(self, layout: Layout, recipe: Recipe) -> Expected:
        """What the update is held against."""
        return expected_update(
            self.task,
            self.client,
            version=self.version,
            samples=self.samples,
            max_change=self.max_change,
            shared=self.shared,
            layout=layout,
            recipe=recipe,
        )


class Forget(_Saying, frozen=True):
    """Break off what is on its way, but for these clients' updates."""

    besides: frozenset[str]


class Resume(_Saying, frozen=True):
    """Ask at once for what is missing of updates on their way."""


class Kept(msgspec.Struct, frozen=True):
    """An update in a file, of ``size`` bytes from ``offset`` on."""

    path: Path
    offset: int
    size: int

    def content(self) -> bytes:
        """Its frame."""
        return read_update(self.path, self.offset, self.size)


Counting = tuple[Kept, Counted]
"""An update, and what it counts."""


class AddUp(_Saying, frozen=True):
    """Add these updates up; the sum is a frame with this ``header``, but for how many they are and what they count.

    ``shared`` is what their compressor was given.
    """

    header: SumHeader
    shared: bytes
    updates: tuple[Counting, ...]


Job = Fetch | Forget | Resume | AddUp


class Ready(_Saying, frozen=True):
    """The worker hears devices; or why it cannot."""

    failure: str = ""


class Hears(_Saying, frozen=True):
    """A chunk of the coordinator's own has come: the broker lets the worker hear."""


class Wants(_Saying, frozen=True):
    """Ask ``client`` for these chunks."""

    client: str
    missing: Missing


class Fetched(_Saying, frozen=True):
    """``client``'s update of the job number ``job`` is in its place, or refused with a ``code`` and a ``reason``.

    ``held`` is there where the worker was started to tell that.
    """

    client: str
    job: int
    code: str = ""
    reason: str = ""
    samples: int = 0
    loss: float = 0.0
    held: HeldUpdate | None = None


class Rejected(_Saying, frozen=True):
    """Something else that came from ``client`` was turned away, so many ``times``."""

    client: str
    code: str
    reason: str
    times: int = 1


class Added(_Saying, frozen=True):
    """A partial sum as a frame, or why there is none."""

    frame: bytes
    failure: str = ""


class Offline(_Saying, frozen=True):
    """The worker's session was lost, and is being brought up again."""

    reason: str


class Failed(_Saying, frozen=True):
    """The worker cannot go on: its disk fails."""

    reason: str


Answer = Ready | Hears | Wants | Fetched | Rejected | Added | Offline | Failed


def encode(said: Sequence[Job] | Sequence[Answer]) -> bytes:
    """What goes through a pipe: many at a time, as every message wakes a thread of the other side."""
    return _encoder.encode(said)


def decode_jobs(data: bytes) -> list[Job]:
    """What a coordinator said; raises FrameError (``message``) on anything else."""
    return decoded(_jobs, data)


def decode_answers(data: bytes) -> list[Answer]:
    """What a worker said; raises FrameError (``message``) on anything else."""
    return decoded(_answers, data)


def _encode_path(value: object) -> bytes:
    if isinstance(value, Path):
        return os.fsencode(value)  # names of files need not be UTF-8
    raise NotImplementedError(f"nothing of {type(value)} is said")


def _decode_path(kind: type, value: Any) -> object:
    if kind is Path:
        return Path(os.fsdecode(value))
    raise NotImplementedError(f"nothing of {kind} is said")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_path)
_jobs: msgspec.msgpack.Decoder[list[Job]] = msgspec.msgpack.Decoder(list[Job], dec_hook=_decode_path)
_answers: msgspec.msgpack.Decoder[list[Answer]] = msgspec.msgpack.Decoder(list[Answer], dec_hook=_decode_path)
