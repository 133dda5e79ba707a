"""What an update must be to touch the model, and a score to count."""

import math
from dataclasses import dataclass

from edge_fl.errors import FrameError
from edge_fl.layout import Layout
from edge_fl.pattern import Pattern
from edge_fl.recipe import Recipe
from edge_fl.wire.frame import Frame, decode_frame, largest_frame
from edge_fl.wire.messages import Evaluated

__all__ = ["Expected", "check_score", "check_update"]


@dataclass(frozen=True)
class Expected:
    """What the coordinator asked of one client."""

    layout: Layout
    recipe: Recipe
    run: str
    round: int
    version: int
    client: str
    tier: int
    samples: int
    assigned: Pattern | None = None


def check_update(content: bytes, expected: Expected) -> Frame:
    """Decode an update and hold it against what was asked.

    Raises
    ------
    FrameError
        With the codes of :func:`edge_fl.wire.frame.decode_frame`, or ``kind``, ``foreign``, ``stale``,
        ``method``, ``samples``, ``loss``, ``pattern`` or ``oversize``.
    """
    if len(content) > largest_frame(expected.layout):
        raise FrameError("oversize", f"The update has {len(content)} bytes.")
    frame = decode_frame(content, expected.layout, expected.recipe.shared())
    header = frame.header
    if frame.shared:
        raise FrameError("header", "The update says what is shared, which is for the coordinator to say.")
    if header.kind != "update":
        raise FrameError("kind", f"The frame is a {header.kind}, not an update.")
    if header.client != expected.client:
        raise FrameError("foreign", f"The update is signed '{header.client}', not '{expected.client}'.")
    if (header.run, header.round, header.version) != (expected.run, expected.round, expected.version):
        raise FrameError("stale", f"The update is for round {header.round} of run '{header.run}'.")
    recipe = expected.recipe
    if (header.method, header.mode, header.values) != (recipe.name, recipe.method.mode, recipe.values):
        raise FrameError("method", f"The update was made by '{header.method}' in {header.mode} mode.")
    if not 0 < header.samples <= expected.samples:
        raise FrameError("samples", f"The update claims {header.samples} of {expected.samples} samples.")
    if header.loss < 0:
        raise FrameError("loss", f"The update's loss is {header.loss}.")
    recipe.method.check(frame.pattern, expected.tier, expected.assigned)
    return frame


def check_score(answer: Evaluated, held_out: int) -> None:
    """Hold a device's score against what can be, where it registered ``held_out`` samples to evaluate on.

    Raises
    ------
    FrameError
        ``samples``, ``not-finite``, ``loss`` or ``accuracy``.
    """
    if not 0 < answer.samples <= held_out:
        raise FrameError("samples", f"The score claims {answer.samples} of {held_out} samples.")
    if not math.isfinite(answer.loss):
        raise FrameError("not-finite", f"The score's loss is {answer.loss}.")
    if answer.loss < 0:
        raise FrameError("loss", f"The score's loss is {answer.loss}.")
    if not 0 <= answer.accuracy <= 1:
        raise FrameError("accuracy", f"The score's accuracy is {answer.accuracy}.")
