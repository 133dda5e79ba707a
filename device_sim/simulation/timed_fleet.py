"""A fleet in this process whose clients take virtual time, come and go, and fail."""

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from broker.poll import Poll
from broker.rounds import Report, Round
from broker.run_folder import RunFolder
from device_sim.simulation.fleet import Parts, SimulatedFleet
from device_sim.simulation.schedule import Asked, Schedule
from edge_fl.core.arrays import packed, unpacked
from edge_fl.core.content import Ref
from edge_fl.core.errors import RunError
from edge_fl.core.server_half import State
from edge_fl.wire.frame import largest_frame
from edge_fl.wire.messages import CollectedStatistics, Evaluated, Measured, Task, encode_message

__all__ = ["FLEET", "TimedFleet"]

_TICK = 1e-6  # seconds: the least that a look at the clock waits, where nothing is to come by then
FLEET = "fleet."
"""What the names of a fleet's arrays in a checkpoint begin with."""
_NOW, _FLIGHTS = f"{FLEET}now", f"{FLEET}flights"


@dataclass(frozen=True)
class _Flight:
    """What a client is at: its answer to ``task``, asked ``seconds`` before it ``arrives``; no report: it fails."""

    task: Task
    asked: float
    seconds: float
    arrives: float
    report: Report | None
    state: State


class _Kept(msgspec.Struct, frozen=True):
    """A flight in a checkpoint, with its update and the client's packed state."""

    client: str
    task: Task
    asked: float
    seconds: float
    arrives: float
    samples: int
    loss: float
    frame: bytes | None
    state: bytes


class TimedFleet(SimulatedFleet):
    """A client trains when it is asked, from the model at hand; its update arrives when the schedule says.

    Until then the update lies in the round's file. Virtual time passes in :meth:`pump` alone, from one event to the
    next: clients come and go, and answers arrive. A client that is away as its answer is ready gives it when it is
    back. One that is asked again drops what it was at. A checkpoint holds the virtual time and whatever is on its way
    into a later round. Of events at one time those of the lower id come first.

    Parameters
    ----------
    parts
        As :class:`~device_sim.simulation.fleet.SimulatedFleet` takes them.
    schedule
        How long clients take, and when they are there.
    folder
        Takes updates.
    run
        The run's id.
    learned
        Of a run that goes on: what :meth:`state_dict` gave.
    """

    timed = True

    def __init__(self, parts: Parts, *, schedule: Schedule, folder: RunFolder, run: str, learned: State) -> None:
        self._schedule, self._folder, self._run = schedule, folder, run
        self._now = float(learned[_NOW]) if _NOW in learned else 0.0
        self._events: list[tuple[float, str]] = []
        self._presence: dict[str, Iterator[float]] = {}
        self._turns: dict[str, float] = {}  # when each comes or goes next
        self._there: set[str] = set()
        self._flights: dict[str, _Flight] = {}
        self._answers: dict[str, tuple[float, Evaluated | CollectedStatistics]] = {}
        self._poll: Poll[Any, Any] | None = None
        super().__init__(parts)
        self._room = largest_frame(self._bundle.layout)
        for kept in (
            msgspec.msgpack.decode(learned[_FLIGHTS].tobytes(), type=list[_Kept]) if _FLIGHTS in learned else []
        ):
            self._restore(kept)

    # --- who is there

    def _join(self) -> None:
        """Whoever came before now has registered."""
        for client in self._clients:
            self._presence[client] = self._schedule.presence(client)
            for time in self._presence[client]:
                if time > self._now:
                    self._turns[client] = time
                    heapq.heappush(self._events, (time, client))
                    break
                self._turn(client, time)

    def _turn(self, client: str, time: float) -> None:
        """It comes, or goes."""
        if client in self._there:
            self._there.discard(client)
            self.registry.gone(client, time)
        else:
            self._there.add(client)
            if self.registry.get(client) is None:
                self._register(client, self._clients.profile(client, self._measured(client)))
            else:
                self.registry.heard(client)

    def _measured(self, client: str) -> Measured | None:
        """What it finds in the rehearsals, where there are any; they take it no time."""
        count, steps = len(self._parts.tiers.rehearsals), self._schedule.steps(client)
        if not count:
            return None
        return Measured(self._run, tuple(steps[min(tier, len(steps) - 1)] for tier in range(count)))

    # --- time

    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self._now

    def pump(self, until: float = math.inf) -> None:
        """Go on to the next event, or to ``until`` if none comes before; RunError where nothing is ever to come."""
        coming = self._events[0][0] if self._events else math.inf
        time = min(coming, max(until, self._now + _TICK))
        if time == math.inf:
            raise RunError("Nothing is to come in the simulated world that the run could wait for.")
        self._now = max(self._now, time)
        while self._events and self._events[0][0] <= self._now:
            _, client = heapq.heappop(self._events)
            while (turn := self._turns.get(client, math.inf)) <= self._now:
                self._turn(client, turn)
                self._turns[client] = next(self._presence[client], math.inf)
                if self._turns[client] < math.inf:
                    heapq.heappush(self._events, (self._turns[client], client))
            self._deliver(client)

    def _deliver(self, client: str) -> None:
        """Give what is ready of a client that is there."""
        if client not in self._there:
            return
        flight, current = self._flights.get(client), self._current
        if flight is not None and flight.arrives <= self._now and current is not None:
            del self._flights[client]
            self._arrive(client, flight, current)
        at, answer = self._answers.get(client, (math.inf, None))
        if self._poll is not None and answer is not None and at <= self._now:
            del self._answers[client]
            self._poll.take(client, answer, self.registry[client].profile)
            self._observer.device(client, self._poll.statuses[1])

    def _arrive(self, client: str, flight: _Flight, current: Round) -> None:
        if flight.report is None:
            current.excuse(client, "failed: the simulated world has it so")
            self._observer.device(client, "failed")
            return
        part = current.parts[client]
        at = flight.asked if part.asked_at is None else part.asked_at
        prompt = at == flight.asked and flight.arrives == self._now
        part.seconds = flight.seconds if prompt else self._now - at
        self._take(client, flight.report, flight.state)

    # --- rounds

    def open_round(self, current: Round, model: bytes) -> Ref:
        """Train this ``model`` from now on; what is on its way from an earlier round counts in this one."""
        self._recall()
        self._current = current
        for client in current.outstanding():
            self._deliver(client)
        return self.offer_model(model)

    def ask(self, tasks: Mapping[str, Task]) -> None:
        """Train them now, all in one go, and have their updates arrive in their time."""
        updates = self._folder.open_updates(self._open.number, self._room)
        for client in sorted(tasks):
            self._observer.device(client, "training")
        failing = {client for client in sorted(tasks) if self._schedule.fails(client, tasks[client].round)}
        for client in sorted(failing):
            self._fly(client, tasks[client], None, {})
            self.sent[client] += self._downlink(client)
        able = {client: task for client, task in tasks.items() if client not in failing}
        for trained in self._train(able):
            client, frame, header = trained.client, trained.update.frame, trained.frame.header
            report = Report(header.samples, header.loss, len(frame), updates.path, updates.offset(client))
            updates.write(report.offset, frame)
            self._fly(client, able[client], report, trained.update.state)

    def _fly(self, client: str, task: Task, report: Report | None, state: State) -> None:
        down, up = self._downlink(client), 0 if report is None else report.size
        trains = None if report is None else task.tier
        arrives, seconds = self._schedule.answer(Asked(client, task.round, self._now, trains, down, up))
        flight = _Flight(task, self._now, seconds, arrives, report, state)
        self._flights[client] = flight
        heapq.heappush(self._events, (flight.arrives, client))

    def close_round(self) -> None:
        """What nobody waits for any longer is dropped."""
        awaited = frozenset(self._open.outstanding())
        self._flights = {client: flight for client, flight in self._flights.items() if client in awaited}
        self._current = None

    def poll(self, current: Poll[Any, Any], *, deadline: float, gone_after: float) -> None:
        """Clients answer when they have the model; looking at their samples takes them no time."""
        self._poll, until, model = current, self._now + deadline, self._decoded()
        for client, task in current.tasks.items():
            self._observer.device(client, current.statuses[0])
            down, answer = self._downlink(client), self._answer(client, task, model)
            self.sent[client] += down
            up = len(encode_message(answer))
            at, _ = self._schedule.answer(Asked(client, task.round, self._now, None, down, up))
            self._answers[client] = at, answer
            heapq.heappush(self._events, (at, client))
        while self._now < until and (awaited := current.outstanding() - self.registry.lost(self._now, gone_after)):
            self.pump(min([until, *self.registry.losses(awaited, gone_after, self._now)]))
        current.closed, self._poll = True, None
        self._answers.clear()

    # --- what a run that goes on must know

    def state_dict(self) -> State:
        """The virtual time, and whatever is on its way."""
        kept = [self._keep(client, flight) for client, flight in sorted(self._flights.items())]
        return {_NOW: np.array(self._now), _FLIGHTS: np.frombuffer(msgspec.msgpack.encode(kept), np.uint8)}

    def flying(self) -> Round | None:
        """Who still trains, as of the round before."""
        before = Round(0, 0, 0, 0.0)
        for client, flight in self._flights.items():
            before.ask(client, flight.task, flight.asked)
        return before

    def _keep(self, client: str, flight: _Flight) -> _Kept:
        report = flight.report
        return _Kept(
            client=client,
            task=flight.task,
            asked=flight.asked,
            seconds=flight.seconds,
            arrives=flight.arrives,
            samples=0 if report is None else report.samples,
            loss=0.0 if report is None else report.loss,
            frame=None if report is None else report.content(),
            state=packed(flight.state),
        )

    def _restore(self, kept: _Kept) -> None:
        report = None
        if kept.frame is not None:
            updates = self._folder.open_updates(0, self._room)  # of a buffered run, which has one file
            report = Report(kept.samples, kept.loss, len(kept.frame), updates.path, updates.offset(kept.client))
            updates.write(report.offset, kept.frame)
        self._flights[kept.client] = _Flight(
            kept.task, kept.asked, kept.seconds, kept.arrives, report, unpacked(kept.state)
        )
        heapq.heappush(self._events, (kept.arrives, kept.client))
