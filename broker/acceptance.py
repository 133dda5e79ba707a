"""What an update, or statistics, must be to touch the model, and a score to count."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from broker.held_update import HeldUpdate
from broker.rounds import Round
from edge_fl.core.bundle import Manifest
from edge_fl.core.divergence import farthest
from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.metrics.base import Metric
from edge_fl.recipes.recipe import Recipe
from edge_fl.training.batch_statistics import collectable, own_row
from edge_fl.training.update import assigned_pattern
from edge_fl.wire.frame import Frame, decode_frame, largest_frame
from edge_fl.wire.messages import CollectStatistics, Evaluate, Evaluated, Task
from edge_fl.wire.values import WITHHELD

__all__ = [
    "Expected",
    "check_held",
    "check_score",
    "check_statistics",
    "check_told",
    "check_update",
    "diverged",
    "expected_of",
    "expected_update",
]

# Programs compute no larger one, and sums over samples stay finite.
_LARGEST_LOSS = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Expected:
    """What the coordinator asked of one client; ``max_change`` is the most by which it may change a parameter.

    An update whose values are ``withheld`` says all but these. ``shared`` is what a compressor gave out with the model.
    ``statistics`` says whether BatchNorm's are to be among the values.
    """

    layout: Layout
    recipe: Recipe
    run: str
    round: int
    version: int
    client: str
    tier: int
    samples: int
    max_change: float
    assigned: Pattern | None = None
    withheld: bool = False
    shared: bytes = b""
    statistics: bool = True

    @property
    def values(self) -> str:
        """How the update's values are encoded."""
        return WITHHELD if self.withheld else self.recipe.values


def expected_of(current: Round, client: str, samples: int, *, layout: Layout, recipe: Recipe) -> Expected:
    """What ``current`` asked of a client that registered so many ``samples``: in this round, or an earlier one."""
    task = current.parts[client].task
    return expected_update(
        task,
        client,
        version=current.version - (current.number - task.round),
        samples=samples,
        max_change=current.max_change,
        shared=recipe.shared(),
        layout=layout,
        recipe=recipe,
    )


def expected_update(
    task: Task,
    client: str,
    *,
    version: int,
    samples: int,
    max_change: float,
    shared: bytes,
    layout: Layout,
    recipe: Recipe,
) -> Expected:
    """What ``task`` asked of a client that registered so many ``samples``, of a model of ``version``."""
    return Expected(
        layout=layout,
        recipe=recipe,
        run=task.run,
        round=task.round,
        version=version,
        client=client,
        tier=task.tier,
        samples=samples,
        assigned=assigned_pattern(task, layout),
        max_change=max_change,
        withheld=task.withheld,
        shared=shared,
        statistics=task.without_statistics is msgspec.UNSET,
    )


def check_update(content: bytes, expected: Expected, *, travelled: bool = True) -> Frame:
    """Decode an update, which may have ``travelled`` here, and hold it against what was asked.

    Raises
    ------
    FrameError
        With the codes of :func:`edge_fl.wire.frame.decode_frame`, or ``kind``, ``foreign``, ``stale``,
        ``method``, ``statistics``, ``samples``, ``loss``, ``pattern``, ``diverged`` or ``oversize``.
    """
    if len(content) > largest_frame(expected.layout):
        raise FrameError("oversize", f"The update has {len(content)} bytes.")
    recipe = expected.recipe
    frame = decode_frame(content, expected.layout, expected.shared, recipe.decoders, travelled=travelled)
    header = frame.header
    if frame.shared:
        raise FrameError("header", "The update says what is shared, which is for the coordinator to say.")
    if header.kind != "update":
        raise FrameError("kind", f"The frame is a {header.kind}, not an update.")
    if header.client != expected.client:
        raise FrameError("foreign", f"The update is signed '{header.client}', not '{expected.client}'.")
    if (header.run, header.round, header.version) != (expected.run, expected.round, expected.version):
        raise FrameError("stale", f"The update is for round {header.round} of run '{header.run}'.")
    if (header.method, header.mode, header.values) != (recipe.name, recipe.method.mode, expected.values):
        raise FrameError("method", f"The update was made by '{header.method}' in {header.mode} mode.")
    if header.has_statistics != expected.statistics:
        found = "has BatchNorm's statistics" if header.has_statistics else "lacks BatchNorm's statistics"
        raise FrameError("statistics", f"The update {found}, which is not what the task asked for.")
    if not 0 < header.samples <= expected.samples:
        raise FrameError("samples", f"The update claims {header.samples} of {expected.samples} samples.")
    if not 0 <= header.loss <= _LARGEST_LOSS:
        raise FrameError("loss", f"The update's loss is {header.loss}.")
    recipe.method.check(frame.pattern, expected.tier, expected.assigned)
    if expected.withheld:
        return frame
    name, size = farthest(expected.layout, frame.values)
    if not size <= expected.max_change:
        raise diverged(name, size)
    return frame


def diverged(name: str, size: float) -> FrameError:
    """That an update changes a parameter by more than a round may."""
    return FrameError("diverged", f"The update changes '{name}' by {size:.1e}.")


def check_held(update: HeldUpdate, asked: Expected) -> Frame:
    """Hold an update that a worker has against what was asked, as :func:`check_update` does.

    What a worker says is within what its clients could have trained. Whether they did, only the worker knows.

    Raises FrameError.
    """
    check_update(update.frame, replace(asked, withheld=True))
    check_told(update, asked)
    return update.without_values(asked.layout, asked.recipe.decoders)


def check_told(update: HeldUpdate, asked: Expected) -> None:
    """Hold what a worker tells of an update beside its frame against what can be; raises FrameError."""
    layout, (name, change) = asked.layout, update.farthest
    if not 0 < update.length <= largest_frame(layout):
        raise FrameError("oversize", f"The update has {update.length} bytes.")
    if not change <= asked.max_change:
        raise diverged(name, change)
    if update.reach.keys() != {tensor.name for tensor in layout.tensors}:
        raise FrameError("values", "A worker tells the reach of other tensors than the model's.")
    told = [update.size.statistics, *(update.reach[tensor.name] for tensor in layout.statistics)]
    if not asked.statistics and any(told):
        raise FrameError("statistics", "A worker tells of statistics in an update that was to hold none.")
    if not all(0 <= each < math.inf for each in update.reach.values()) or not all(
        each >= 0 for each in update.size
    ):
        raise FrameError("not-finite", "A worker tells of an update that is not finite, or less than 0.")
    most = 1.0 if asked.recipe.rule.signs else change
    if any(update.reach[tensor.name] > most for tensor in layout.parameters):
        raise FrameError("values", "A worker tells of an update that reaches farther than its largest change.")


def check_score(answer: Evaluated, held_out: int, metrics: Sequence[Metric], manifest: Manifest) -> None:
    """Hold a device's score against what can be, where it registered ``held_out`` samples to evaluate on.

    ``metrics`` are those asked for, of the model that ``manifest`` describes.

    Raises
    ------
    FrameError
        ``samples``, ``not-finite``, ``loss`` or ``sums``.
    """
    if not 0 < answer.samples <= held_out:
        raise FrameError("samples", f"The score claims {answer.samples} of {held_out} samples.")
    if not math.isfinite(answer.loss):
        raise FrameError("not-finite", f"The score's loss is {answer.loss}.")
    if not 0 <= answer.loss <= _LARGEST_LOSS:
        raise FrameError("loss", f"The score's loss is {answer.loss}.")
    if sorted(answer.sums) != sorted(metric.name for metric in metrics):
        raise FrameError("sums", "The score has other sums than were asked for.")
    for metric in metrics:
        sums = np.array(answer.sums[metric.name], dtype=np.float64)
        if len(sums) != metric.size(manifest) or not metric.plausible(sums, answer.samples):
            raise FrameError("sums", f"No {answer.samples} samples have such sums of '{metric.name}'.")


def check_statistics(
    content: bytes, asked: Evaluate | CollectStatistics, *, client: str, samples: int, manifest: Manifest
) -> Frame:
    """Decode collected statistics and hold them against what was ``asked`` of a client that registered ``samples``.

    Raises
    ------
    FrameError
        With the codes of :func:`edge_fl.wire.frame.decode_frame`, or ``oversize``, ``kind``, ``foreign``, ``stale``,
        ``samples``, ``pattern`` or ``statistics``.
    """
    layout = manifest.layout
    if len(content) > largest_frame(layout):
        raise FrameError("oversize", f"The statistics have {len(content)} bytes.")
    frame = decode_frame(content, layout)
    header = frame.header
    if header.kind != "statistics" or header.mode != "units":
        raise FrameError(
            "kind", f"The frame is a {header.kind} in {header.mode} mode, not statistics in units mode."
        )
    if header.client != client:
        raise FrameError("foreign", f"The statistics are signed '{header.client}', not '{client}'.")
    if (header.run, header.round, header.version) != (asked.run, asked.round, asked.round):
        raise FrameError("stale", f"The statistics are for round {header.round} of run '{header.run}'.")
    if not 0 < header.samples <= samples:
        raise FrameError("samples", f"The statistics claim {header.samples} of {samples} samples.")
    if frame.pattern != Pattern.prefix(layout, asked.width):
        raise FrameError("pattern", f"The statistics are not those of the width {asked.width / 1000:g}.")
    _check_rows(frame, manifest, asked.width)
    return frame


def _check_rows(frame: Frame, manifest: Manifest, width: int) -> None:
    """Statistics alone, of the row of ``width`` alone, and no variance below 0."""
    if frame.sent is None or frame.sent.any():
        raise FrameError("statistics", "The frame holds parameters, where statistics alone belong.")
    wanted = {tensor.name for tensor in collectable(manifest)}
    for tensor in manifest.layout.tensors:
        if tensor.role != "statistic":
            continue
        others = np.array(frame.values[tensor.name])
        if tensor.name in wanted:
            others[own_row(manifest, tensor, width)] = 0
        if others.any():
            raise FrameError("statistics", f"The frame holds others of '{tensor.name}' than were asked for.")
        if tensor.name.endswith("running_var") and (frame.values[tensor.name] < 0).any():
            raise FrameError("statistics", f"A variance of '{tensor.name}' is below 0.")
