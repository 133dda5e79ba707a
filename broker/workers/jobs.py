"""What a coordinator and its workers say to each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.acceptance import Expected, expected_update
from broker.held_update import HeldUpdate
from broker.update_file import read_update
from edge_fl.aggregation.exact_sums import Counted
from edge_fl.core.content import Missing, Ref
from edge_fl.core.layout import Layout
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


@dataclass(frozen=True)
class Fetch:
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


@dataclass(frozen=True)
class Forget:
    """Break off what is on its way, but for these clients' updates."""

    besides: frozenset[str]


@dataclass(frozen=True)
class Resume:
    """Ask at once for what is missing of updates on their way."""


@dataclass(frozen=True)
class Kept:
    """An update in a file, of ``size`` bytes from ``offset`` on; ``shared`` is what its compressor was given."""

    path: Path
    offset: int
    size: int
    shared: bytes

    def content(self) -> bytes:
        """Its frame."""
        return read_update(self.path, self.offset, self.size)


Counting = tuple[Kept, Counted]
"""An update, and what it counts."""


@dataclass(frozen=True)
class AddUp:
    """Add these updates up; the sum is a frame with this ``header``, but for how many they are and what they count."""

    header: SumHeader
    updates: Sequence[Counting]


Job = Fetch | Forget | Resume | AddUp


@dataclass(frozen=True)
class Ready:
    """The worker hears devices; or why it cannot."""

    failure: str = ""


@dataclass(frozen=True)
class Hears:
    """A chunk of the coordinator's own has come: the broker lets the worker hear."""


@dataclass(frozen=True)
class Wants:
    """Ask ``client`` for these chunks."""

    client: str
    missing: Missing


@dataclass(frozen=True)
class Fetched:
    """The update of the job number ``job`` is in its place, or refused with a ``code`` and a ``reason``.

    ``held`` is there where the worker was started to tell that.
    """

    job: int
    code: str = ""
    reason: str = ""
    samples: int = 0
    loss: float = 0.0
    held: HeldUpdate | None = None


@dataclass(frozen=True)
class Rejected:
    """Something else that came from ``client`` was turned away, so many ``times``."""

    client: str
    code: str
    reason: str
    times: int = 1


@dataclass(frozen=True)
class Added:
    """A partial sum as a frame, or why there is none."""

    frame: bytes
    failure: str = ""


@dataclass(frozen=True)
class Offline:
    """The worker's session was lost, and is being brought up again."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The worker cannot go on: its disk fails."""

    reason: str


Answer = Ready | Hears | Wants | Fetched | Rejected | Added | Offline | Failed
