"""The model that a device keeps from one task to the next, so that none is fetched twice."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from edge_fl.compressors.base import DECODERS
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout
from edge_fl.wire.downlink import follow
from edge_fl.wire.frame import frame_header
from edge_fl.wire.messages import CollectStatistics, Evaluate, Task

__all__ = ["HeldModel"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Held:
    run: str
    version: int
    ref: Ref
    content: bytes


class HeldModel:
    """One model's frame at the most: a device's memory may not take two."""

    def __init__(self) -> None:
        self._held: _Held | None = None

    def of(
        self, task: Task | Evaluate | CollectStatistics, layout: Layout, fetch: Callable[[Ref], bytes]
    ) -> bytes:
        """The frame of the model that ``task`` is about: the one that is held, or made of it by the task's changes, or
        fetched. It is for whoever computes with the model to check.

        It is kept where it may be wanted again: the next round's is mostly the one that was asked about last, and
        changes lead on from any.

        Raises
        ------
        FrameError
            As :func:`edge_fl.wire.frame.frame_header`.
        """
        content = self._made(task, layout, fetch)
        if content is None:
            if task.changes is None:
                self._held = None
            content = fetch(task.model)
        trains = isinstance(task, Task)
        held = _Held(task.run, frame_header(content).version, task.model, content)
        self._held = None if trains and task.changes is None else held
        return content

    def _made(
        self, task: Task | Evaluate | CollectStatistics, layout: Layout, fetch: Callable[[Ref], bytes]
    ) -> bytes | None:
        """The task's model, where it is held or can be made of the one that is."""
        held = self._held
        if held is None or held.run != task.run:
            return None
        if held.ref == task.model:
            return held.content
        changes, done = task.changes or (), held.version - task.since
        if not 0 <= done < len(changes):
            return None
        try:
            content = follow(held.content, [fetch(ref) for ref in changes[done:]], layout, DECODERS)
            if ref_of(content) != task.model:
                raise FrameError("digest", "They make another model.")
        except FrameError as error:
            _log.warning("the changes do not lead to the model of round %d (%s); fetching it", task.round, error)
            self._held = None
            return None
        return content
