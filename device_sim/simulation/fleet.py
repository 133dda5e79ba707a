"""A fleet in this process: its clients train when they are asked, and no time passes for them."""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.acceptance import Expected, check_held, check_update, expected_of
from broker.final_model import FinalModel
from broker.fleet import Counted
from broker.model import GlobalModel
from broker.observer import Observer
from broker.poll import Poll
from broker.registry import Registry
from broker.round_sum import RoundSum
from broker.rounds import Report, Round
from broker.store import Store
from broker.tiers import Tiers
from device_sim.simulation.clients import Clients
from device_sim.simulation.held_round import HeldRound
from device_sim.simulation.parts import PartsTrainer
from device_sim.simulation.settings import TrainerSettings
from device_sim.simulation.time_model import TIER_SLOWDOWNS
from device_sim.simulation.trainer import Call, Trainer
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.errors import RunError
from edge_fl.core.server_half import State
from edge_fl.methods.base import of_tier
from edge_fl.recipes.recipe import Recipe
from edge_fl.runtimes.base import Runtime, open_runtime
from edge_fl.training.batch_statistics import make_statistics
from edge_fl.training.evaluation import evaluated
from edge_fl.training.update import Update
from edge_fl.wire.frame import Frame, decode_frame
from edge_fl.wire.messages import CollectedStatistics, CollectStatistics, Evaluate, Evaluated, Register, Task

__all__ = ["Parts", "SimulatedFleet", "Trained"]

# Clients whose state is read together, which may be as large as a few models.
_AT_ONCE, _AT_ONCE_BYTES = 16, 32 << 20


@dataclass(frozen=True)
class Trained:
    """One client's update, held against what it was asked."""

    client: str
    update: Update
    frame: Frame

    @property
    def report(self) -> Report:
        """As a round counts it, once it is in its sums."""
        header = self.frame.header
        return Report(header.samples, header.loss, len(self.update.frame))


@dataclass(frozen=True)
class Parts:
    """What a simulated fleet is made of.

    ``model`` is what is trained, of ``bundle`` and by ``recipe``; ``trainer`` computes the training of ``clients``, and
    ``settings`` are what it was made by: polls are answered in the runtime that they name. ``tiers`` says when a client
    is ready. ``store`` has what methods remember of clients. ``observer`` is told of every client that is done.
    """

    bundle: Bundle
    recipe: Recipe
    model: GlobalModel
    clients: Clients
    trainer: Trainer
    settings: TrainerSettings
    tiers: Tiers
    store: Store
    observer: Observer


class SimulatedFleet:
    """All clients are there, all train the moment they are asked, and none fails: an error of one ends the run.

    They train in the order of their ids, and each update is added to the round's sums at once: only as many are in
    memory as the trainer trains together. Where sums are exact, workers hold the updates that they trained and add them
    up. What methods remember of clients is kept with the round that it is of.

    Parameters
    ----------
    parts
        What it is made of.
    """

    outlives = False
    timed = False
    returning = -math.inf

    def __init__(self, parts: Parts) -> None:
        self.sent: Counter[str] = Counter()
        self.registry = Registry(ready=parts.tiers.ready)
        self._parts, self._bundle, self._recipe = parts, parts.bundle, parts.recipe
        self._model, self._clients, self._observer = parts.model, parts.clients, parts.observer
        self._accepted = parts.store.accepted()
        self._states: dict[str, State] = {}  # what clients are left with by this round, or the last
        self._remembering = parts.store.remembering()
        self._content = b""
        self._current: Round | None = None
        self._held: _Held | None = None
        self._runtime: Runtime | None = None
        self._join()

    def _join(self) -> None:
        for client in self._clients:
            self._register(client, self._clients.profile(client))

    def _register(self, client: str, profile: Register) -> None:
        self.registry.register(client, profile).accepted = self._accepted.get(client, 0)

    def now(self) -> float:
        """Monotonic seconds: those of this machine."""
        return time.monotonic()

    def open_round(self, current: Round, model: bytes) -> Ref:
        """Train this ``model`` from now on; what the last round left clients with is in the record."""
        self._recall()
        self._current, self._held, trainer = current, None, self._parts.trainer
        if self._model.mergeable and isinstance(trainer, PartsTrainer):
            self._held = self._open_held(current, model, trainer)
            current.sums = self._held.total
        else:
            current.sums = self._model.begin()
        return self.offer_model(model)

    def _open_held(self, current: Round, model: bytes, trainer: PartsTrainer) -> "_Held":
        """The round's updates, with the workers that train them."""

        def recall(clients: Sequence[str]) -> list[Call]:
            states = self._parts.store.states(clients)  # those before the round, in which each is asked once
            return [self._call(client, current.parts[client].task, states[client]) for client in clients]

        held = HeldRound(
            self._bundle.layout,
            self._recipe.rule,
            trainer=trainer,
            model=model,
            number=current.number,
            recall=recall,
        )
        return _Held(held, self._model.round_sum(held))

    def offer_model(self, model: bytes) -> Ref:
        """Train, or evaluate, this one."""
        self._content = model
        return ref_of(model)

    def offer_changes(self, frames: Sequence[bytes]) -> tuple[Ref, ...]:
        """Nobody needs them here: clients train the model that they lead to."""
        del frames
        return ()

    def changes_for(self, client: str, model: GlobalModel) -> tuple[Ref, ...] | None:
        """None: likewise. Their bytes are counted as if they had been sent."""
        del client, model
        return None

    def ask(self, tasks: Mapping[str, Task]) -> None:
        """Have them train, and add what comes of it."""
        if self._held is not None:
            self._ask_held(tasks, self._held)
            return
        current = self._open
        assert current.sums is not None
        for trained in self._train(tasks):
            tier = tasks[trained.client].tier
            self._take(trained.client, trained.report, trained.update.state)
            current.sums.add(tier, trained.frame, _seconds(trained.report, tier))

    def _ask_held(self, tasks: Mapping[str, Task], held: "_Held") -> None:
        """Have workers train them, and hold what comes of it."""
        clients = sorted(tasks)
        updates = held.round.train(self._calls(tasks), len(clients))
        for client, (holding, place) in zip(clients, updates, strict=True):
            tier, frame = tasks[client].tier, check_held(holding.update, self._asked(client))
            report = Report(frame.header.samples, frame.header.loss, holding.update.length)
            self._take(client, report, holding.state)
            held.total.add_held(tier, frame, place, _seconds(report, tier))

    @property
    def _open(self) -> Round:
        assert self._current is not None  # nobody is asked between two rounds
        return self._current

    def _train(self, tasks: Mapping[str, Task]) -> Iterator[Trained]:
        """The updates of these clients, in the order of their ids."""
        clients = sorted(tasks)
        updates = self._parts.trainer.updates(self._content, self._calls(tasks), len(clients))
        for client, update in zip(clients, updates, strict=True):
            frame = check_update(update.frame, self._asked(client), travelled=self._parts.trainer.remote)
            yield Trained(client, update, frame)

    def _calls(self, tasks: Mapping[str, Task]) -> Iterator[Call]:
        """What each is to train, as a trainer takes it; the model is counted as sent."""
        clients = sorted(tasks)
        for client in clients:
            self.sent[client] += self._downlink(client)
        size = min(max(_AT_ONCE_BYTES // len(self._content), 1), _AT_ONCE)
        parts = (clients[start : start + size] for start in range(0, len(clients), size))
        return (
            self._call(client, tasks[client], state)
            for part in parts
            for client, state in self._remembered(part).items()
        )

    def _asked(self, client: str) -> Expected:
        samples = self.registry[client].profile.samples
        return expected_of(self._open, client, samples, layout=self._bundle.layout, recipe=self._recipe)

    def _downlink(self, client: str) -> int:
        """The bytes in which the model reaches a client, which still holds the one it trained last."""
        changes = self._model.changes_since(self.registry[client].accepted - 1)
        return len(self._content) if changes is None else sum(map(len, changes))

    def _call(self, client: str, task: Task, state: State) -> Call:
        return Call(task, client, self._clients.train(client), state)

    def _recall(self) -> None:
        """Turn to the record for what clients remember, which has the last round's, too."""
        self._remembering |= {client for client, state in self._states.items() if state}
        self._states.clear()

    def _remembered(self, clients: Sequence[str]) -> dict[str, State]:
        """What each of some clients remembers, in their order."""
        asked = [client for client in clients if client in self._remembering and client not in self._states]
        recorded = self._parts.store.states(asked) if asked else {}
        return {client: self._states.get(client) or recorded.get(client, {}) for client in clients}

    def _take(self, client: str, report: Report, state: State) -> None:
        """Count an update, and keep what the client is left with."""
        current = self._open
        self._states[client], self.registry[client].accepted = state, current.round_of(client)
        current.report(client, report)
        self._observer.device(client, "accepted")

    def pump(self, until: float = math.inf) -> None:
        """Nothing is ever to come: RunError."""
        raise RunError("All clients of the simulation were asked, and no more will come; ask for fewer.")

    def close_round(self) -> None:
        """Nobody is awaited."""
        self._current = None

    def poll(self, current: Poll[Any, Any], *, deadline: float, gone_after: float) -> None:
        """All answer at once."""
        del deadline, gone_after
        model = self._decoded()
        for client, task in current.tasks.items():
            current.take(client, self._answer(client, task, model), self.registry[client].profile)
        current.closed = True

    def _decoded(self) -> Frame:
        return decode_frame(self._content, self._bundle.layout)

    def _answer(
        self, client: str, task: Evaluate | CollectStatistics, model: Frame
    ) -> Evaluated | CollectedStatistics:
        clients = self._clients
        if self._runtime is None:
            name, threads = self._parts.settings.programs, self._parts.settings.threads
            self._runtime = open_runtime(name, self._bundle, threads=threads)
        state = self._remembered([client])[client]
        if isinstance(task, Evaluate):
            test = clients.test(client)
            return evaluated(task, model=model, runtime=self._runtime, samples=test, state=state)[0]
        train = clients.train(client)
        frame = make_statistics(
            task, client=client, model=model, runtime=self._runtime, samples=train, state=state
        )
        return CollectedStatistics(task.run, task.round, frame)

    def counted(self) -> Counted:
        """Bytes since the last call; an update that cannot be ends the run."""
        counted = Counted(dict(self.sent), {})
        self.sent.clear()
        return counted

    def recount(self, rejections: Mapping[str, int]) -> None:
        """None: a round that was broken off is done again."""

    def states(self) -> Mapping[str, State]:
        """Those of the round that was closed last."""
        return self._states

    def state_dict(self) -> State:
        """Nothing: every round begins alike."""
        return {}

    def flying(self) -> Round | None:
        """Nobody still trains as a round begins."""
        return None

    def farewell(self, rounds: int, final: FinalModel) -> None:
        """Nobody waits for it, and nobody keeps a model."""


@dataclass(frozen=True)
class _Held:
    """A round whose updates workers hold, and what they come to."""

    round: HeldRound
    total: RoundSum


def _seconds(report: Report, tier: int) -> float:
    """What the server half is told that an update took: in a world where a tier sends a megabyte in its slowdown."""
    return 1e-6 * report.size * of_tier(TIER_SLOWDOWNS, tier)
