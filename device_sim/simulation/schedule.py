"""When things happen in a timed simulation: how long clients take, when they are there, and who fails."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from device_sim.simulation.clients import Clients
from device_sim.simulation.links import find_link
from device_sim.simulation.settings import World
from device_sim.simulation.time_model import Clock
from edge_fl.core.randomness import Stream
from edge_fl.methods.base import of_tier

__all__ = ["Asked", "DrawnSchedule", "Schedule"]


@dataclass(frozen=True)
class Asked:
    """A task of ``round``, asked ``at`` that time: training in ``tier`` (None: no training), between the ``down`` bytes
    that the client is sent and the ``up`` bytes that it answers with.
    """

    client: str
    round: int
    at: float
    tier: int | None
    down: int
    up: int


class Schedule(Protocol):
    """What a timed fleet goes by; all times are virtual seconds from 0."""

    def steps(self, client: str) -> Sequence[float]:
        """Seconds of one local step of a client in each tier; the last serves every tier beyond."""
        ...

    def answer(self, asked: Asked) -> tuple[float, float]:
        """When the answer to a task arrives, and how many seconds that is after it was asked."""
        ...

    def fails(self, client: str, round: int) -> bool:
        """Whether the client's training in ``round`` comes to nothing."""
        ...

    def presence(self, client: str) -> Iterator[float]:
        """When the client comes, goes, comes ...; all in rising order."""
        ...


class DrawnSchedule:
    """Links and speeds by tier of hardware; stays and absences that are memoryless, and failures by chance.

    Every draw is keyed by seed, client and round: a simulation repeats itself bit for bit.

    Parameters
    ----------
    world
        What it is like.
    clients
        Whose hardware is of which tier.
    local_steps
        V.
    seed
        The run's.
    """

    def __init__(self, world: World, clients: Clients, *, local_steps: int, seed: int) -> None:
        self._world, self._clients, self._seed, self._local_steps = world, clients, seed, local_steps
        self._clock = Clock([find_link(world.link)], world.steps, local_steps, world.slowdowns)

    def steps(self, client: str) -> tuple[float, ...]:
        """Those of the machine that measured, slowed as the client's tier of hardware is."""
        slowdown = of_tier(self._world.slowdowns, self._clients.tier(client))
        return tuple(step * slowdown for step in self._world.steps)

    def answer(self, asked: Asked) -> tuple[float, float]:
        """After transfers, and training that takes up to ``spread`` more or less of its time."""
        training = 0.0
        if asked.tier is not None:
            (draw,) = self._uniform("pace", asked.client, asked.round, 1)
            pace = 1 + self._world.spread * (2 * draw - 1)
            training = self._local_steps * of_tier(self.steps(asked.client), asked.tier) * pace
        seconds = training + self._clock.transfers(self._clients.tier(asked.client), asked.down, asked.up)
        return asked.at + seconds, seconds

    def fails(self, client: str, round: int) -> bool:
        """With a chance of ``failures``."""
        chance = self._world.failures
        return chance > 0 and self._uniform("failure", client, round, 1)[0] < chance

    def presence(self, client: str) -> Iterator[float]:
        """Stays of ``stay`` seconds on average, between absences that leave it ``online`` a share of the time."""
        online, stay = self._world.online, self._world.stay
        if online == 1:
            yield 0.0
            return
        absence, stream = stay * (1 - online) / online, self._stream("presence", client)
        there = float(stream.uint32(1)[0]) < online * 2**32
        now = 0.0
        if there:
            yield now
        while True:
            mean = stay if there else absence
            now -= mean * math.log1p(-float(stream.uint32(1)[0]) / 2**32)
            there = not there
            yield now

    def _uniform(self, purpose: str, client: str, round: int, count: int) -> list[float]:
        """So many draws in [0, 1)."""
        words = self._stream(purpose, client, round).uint32(count)
        return [float(word) / 2**32 for word in words]

    def _stream(self, purpose: str, client: str, round: int = 0) -> Stream:
        return Stream.of(seed=self._seed, purpose=f"world-{purpose}", client=client, round=round)
