"""Devices that speak the whole protocol and train nothing: thousands fit into a process, to load what serves them.

Like an agent, such a device registers, fetches the model of a task and verifies it, offers an update, serves it, and
waits for the verdict, repeating what is not answered. Unlike one it takes the bundle for fetched already, keeps no
state, and every update of it holds the same numbers, under a header of its own.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from device_sim.emulation.sessions import Publish
from edge_fl.agent.capabilities import registration
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.errors import FrameError, RefusedError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.methods.base import DropoutMethod
from edge_fl.recipes.recipe import Recipe
from edge_fl.training.update import assigned_pattern
from edge_fl.transport.transfer import Fetcher, Sender, cut
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.messages import (
    Finished,
    FromDevice,
    Gone,
    Hello,
    Offer,
    Refused,
    Registered,
    Task,
    Topics,
    Verdict,
    Want,
    decode_to_device,
    encode_message,
)

__all__ = ["CrowdDevice", "Ready", "ReadyUpdates"]

_SAMPLES = 100
_REGISTER_SECONDS = (5.0, 30.0)  # as an agent: pauses between two registrations, before the first answer and after
_OFFER_SECONDS = (2.0, 30.0)


@dataclass(frozen=True)
class Ready:
    """An update to be offered: what it is known by, and the chunks in which it travels."""

    ref: Ref
    chunks: tuple[bytes, ...]


class ReadyUpdates:
    """Updates that are valid for a run's tasks, made without training.

    Parameters
    ----------
    layout
        The model's.
    recipe
        The run's, without a compressor. Where its devices choose what to drop, all drop the same at random.
    run
        Its id.
    """

    def __init__(self, layout: Layout, recipe: Recipe, run: str) -> None:
        rng = np.random.default_rng(0)
        self._layout, self._recipe, self._run = layout, recipe, run
        self._change = {t.name: (0.001 * rng.standard_normal(t.shape)).astype(np.float32) for t in layout.tensors}
        method = recipe.method
        dropout = method.dropout(0) if isinstance(method, DropoutMethod) else 0
        self._pattern = Pattern.seeded(layout, dropout, key=1) if dropout else Pattern.full(layout)
        self._made: dict[tuple[str, int], Ready] = {}

    def prepare(self, clients: Iterable[str], round: int) -> None:
        """Make the updates of a round to come, so that nothing is left to do then; no others are kept."""
        self._made = {(client, round): self.make(client, round) for client in clients}

    def __call__(self, client: str, task: Task) -> Ready:
        """What ``client`` answers ``task`` with."""
        made, without = self._made.pop((client, task.round), None), task.without_statistics
        if made is not None and without is msgspec.UNSET:
            return made
        return self.make(client, task.round, assigned_pattern(task, self._layout), without)

    def make(
        self,
        client: str,
        round: int,
        pattern: Pattern | None = None,
        without_statistics: Literal[True] | msgspec.UnsetType = msgspec.UNSET,
    ) -> Ready:
        """The update of ``client`` in ``round``, of ``pattern`` where the coordinator chose one."""
        header = Header(
            kind="update",
            run=self._run,
            round=round,
            version=round - 1,
            layout=self._layout.digest,
            method=self._recipe.name,
            mode=self._recipe.method.mode,
            client=client,
            samples=_SAMPLES,
            loss=1.0,
            without_statistics=without_statistics,
        )
        frame = encode_frame(header, pattern or self._pattern, self._change)
        return Ready(ref_of(frame), cut(frame))


class CrowdDevice:
    """One device; an endpoint for :class:`Sessions`.

    Parameters
    ----------
    client
        Its id.
    topics
        The fleet's.
    update
        Gives the update that a task is answered with.
    publish
        Publishes in its name.

    Attributes
    ----------
    accepted
        How many of its updates were accepted.
    sent
        Bytes of updates that it has sent, some of them more than once.
    finished
        Whether the run is over.
    """

    def __init__(
        self, client: str, *, topics: Topics, update: Callable[[str, Task], Ready], publish: Publish
    ) -> None:
        self._client, self._topics, self._update, self._publish = client, topics, update, publish
        self._up = topics.up(client)
        self._fetcher = Fetcher(lambda missing: self._send(Want(*missing)))
        self._sender = Sender(publish, topics.chunk)
        self._profile = registration(runtime="onnx", samples=_SAMPLES, tier=0)
        self._registered: Registered | None = None
        self._task: Task | None = None
        self._offer: Offer | None = None
        self._chunks: tuple[bytes, ...] = ()
        self._asked = self._next_offer = self._pause = 0.0
        self.accepted = self.sent = 0
        self.finished = False

    @staticmethod
    def subscriptions(topics: Topics, client: str) -> list[str]:
        """The topic filters that its session must be subscribed to."""
        down = topics.down(client)
        return [topics.all, down, f"{down}/chunk/#"]

    @staticmethod
    def will(topics: Topics, client: str) -> tuple[str, bytes]:
        """What the broker publishes when its session is lost."""
        return topics.up(client), encode_message(Gone())

    def connected(self) -> None:
        """Register, and go on with what was under way."""
        self._register()
        self._fetcher.resume()
        self._next_offer = 0.0

    def received(self, topic: str, payload: bytes) -> None:
        """Follow one message; what cannot be read is ignored. Raises RefusedError when it is not wanted."""
        try:
            _, _, chunk = self._topics.parse(topic)
            if chunk is None:
                self._follow(payload)
                return
            content = self._fetcher.chunk(*chunk, payload)
        except FrameError:
            return
        if content is not None and self._task is not None and chunk[0] == self._task.model.digest:
            self._answer(self._task)

    def tick(self, now: float) -> None:
        """Repeat whatever has waited for its answer for too long."""
        self._fetcher.tick()
        self._sender.advance()
        idle = self._task is None
        if idle and now - self._asked > _REGISTER_SECONDS[0 if self._registered is None else 1]:
            self._register()
        if self._offer is not None and now >= self._next_offer:
            self._send(self._offer)
            self._next_offer, self._pause = now + self._pause, min(2 * self._pause, _OFFER_SECONDS[1])

    def _follow(self, payload: bytes) -> None:
        match decode_to_device(payload):
            case Hello():
                self._register()
            case Registered() as message:
                self._registered, self.finished = message, False
            case Refused(reason=reason):
                raise RefusedError(f"The coordinator refused '{self._client}': {reason}")
            case Task() as message if message != self._task and self._is_mine(message.run):
                self._begin(message)
            case Want() as message if self._offer is not None and message.digest == self._offer.update.digest:
                side = self._topics.wanted(self._client, message)
                self.sent += self._sender.serve(side, self._chunks, message)
            case Verdict() as message if self._offer is not None and message.digest == self._offer.update.digest:
                self.accepted += message.accepted
                self._task, self._offer, self._chunks = None, None, ()
            case Finished() as message if self._is_mine(message.run):
                self.finished = True

    def _begin(self, task: Task) -> None:
        if self._task is not None:
            self._fetcher.drop(self._task.model.digest)
        self._task, self._offer, self._chunks = task, None, ()
        self._fetcher.want(task.model)

    def _answer(self, task: Task) -> None:
        ready = self._update(self._client, task)
        self._offer, self._chunks = Offer(task.run, task.round, ready.ref), ready.chunks
        self._next_offer, self._pause = 0.0, _OFFER_SECONDS[0]
        self.tick(time.monotonic())

    def _is_mine(self, run: str) -> bool:
        return self._registered is not None and self._registered.run == run

    def _register(self) -> None:
        self._asked = time.monotonic()
        self._send(self._profile)

    def _send(self, message: FromDevice) -> None:
        self._publish(self._up, encode_message(message))
