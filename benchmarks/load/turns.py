"""Leads the processes: a round of the bare program, a round of the coordinator, and so on."""

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from benchmarks.load import bare, coordinator, devices
from benchmarks.load.bare import Moved
from benchmarks.load.child import Child, Place, cpu_seconds
from benchmarks.load.config import patient_config
from benchmarks.load.coordinator import Asking, Served, resident_of
from benchmarks.load.slow_cores import children_of, slow_cores
from broker.model import GlobalModel
from device_sim.emulation.crowd import ReadyUpdates
from device_sim.emulation.mosquitto import Mosquitto
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, RunError
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.transport.address import BrokerAddress

__all__ = ["Fleet", "MeasuredBroker", "Scaled", "Stage", "Turn", "allow_files", "scale_rounds", "take_turns"]

_METHOD, _PARAMETERS = "fedbiad", {"dropout": [500]}
_WAIT_SECONDS = 600.0
_SPARE_FILES = 200


@dataclass(frozen=True)
class Fleet:
    """So many ``agents`` are registered, of which ``selected`` are asked a round."""

    agents: int
    selected: int

    @classmethod
    def parse(cls, text: str) -> "Fleet":
        """Read ``AGENTS`` or ``AGENTS/SELECTED``; raises ConfigError on anything else."""
        agents, slash, selected = text.partition("/")
        numbers = [int(part) if part.isdecimal() else 0 for part in (agents, selected if slash else agents)]
        if not 0 < numbers[1] <= numbers[0]:
            raise ConfigError(f"A fleet is so many agents, or agents/selected a round, unlike '{text}'.")
        return cls(*numbers)

    def __str__(self) -> str:
        return f"{self.agents}/{self.selected}"


class MeasuredBroker(Protocol):
    """A broker that is a process."""

    @property
    def address(self) -> BrokerAddress:
        """Where it listens."""

    @property
    def pid(self) -> int:
        """Its process."""


@dataclass(frozen=True)
class Turn:
    """One round of the bare program, one of it with hashes, and one of the coordinator, with model frames of ``model``
    bytes.

    ``moved_around`` and the others are CPU seconds of Mosquitto and of the devices meanwhile.
    """

    model: int
    moved: Moved
    moved_around: tuple[float, float]
    hashed: Moved
    hashed_around: tuple[float, float]
    served: Served
    served_around: tuple[float, float]


@dataclass(frozen=True)
class Stage:
    """Where a run takes place: over a ``broker`` that runs, in a ``folder``, with so many ``workers``."""

    broker: MeasuredBroker
    folder: Path
    workers: int = 0


@dataclass(frozen=True)
class Scaled:
    """One round: what the coordinator took, CPU seconds of broker and devices, and the broker's memory."""

    served: Served
    broker: float
    devices: float
    broker_memory: int


def allow_files(fleet: Fleet) -> None:
    """Let every process to come open as many files as it needs; ConfigError when this machine does not."""
    needed = fleet.agents + _SPARE_FILES  # Mosquitto has a connection to each
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed > hard:
        raise ConfigError(
            f"{fleet.agents} agents need {needed} open files, and this machine allows {hard} (ulimit -Hn)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))


def take_turns(
    fleet: Fleet,
    *,
    rounds: int,
    processes: int,
    bundle: Bundle,
    broker: Mosquitto,
    folder: Path,
    report: Callable[[str], None],
) -> list[Turn]:
    """Make a fleet's rounds over ``broker``, its devices spread over ``processes``, each after two of the bare program.

    Raises
    ------
    BrokerError
        When Mosquitto does not start.
    RunError
        When a process fails or falls silent, or the devices were told of another number of accepted updates.
    """
    config = patient_config(
        "load",
        _METHOD,
        _PARAMETERS,
        rounds=rounds,
        selected=fleet.selected,
        registered=fleet.agents,
        wait=_WAIT_SECONDS,
    )
    turns = []
    with broker, _cast(fleet, broker, bundle, config, folder / "run", processes=processes) as cast:
        plain = cast.stack.enter_context(Child("bare program", bare.main, broker.address, cast.model, cast.update))
        for number in range(1, rounds + 1):
            asking = cast.asked(number)
            report(f"{fleet.agents} agents, {fleet.selected} selected: round {number}")
            kinds = (False, True) if number % 2 else (True, False)  # neither is always the one that warms up
            bare_rounds = {hashes: cast.timed(plain, (asking.clients, hashes)) for hashes in kinds}
            (moved, moved_around), (hashed, hashed_around) = bare_rounds[False], bare_rounds[True]
            served, served_around = cast.timed(cast.lead, None)
            turns.append(Turn(asking.model, moved, moved_around, hashed, hashed_around, served, served_around))
        cast.check(rounds * fleet.selected)
    return turns


def _sizes(bundle: Bundle, config: RunConfig) -> tuple[int, int]:
    """Bytes of a model frame and of an update."""
    recipe = open_recipe(config.method, config.parameters)
    model = GlobalModel(bundle.layout, bundle.weights(), recipe=recipe, run=config.run).frame()
    updates = ReadyUpdates(bundle.layout, recipe, config.run)
    return len(model), updates.make(_name(0), 1).ref.size


def _name(number: int) -> str:
    return f"device-{number:05d}"


def scale_rounds(
    fleet: Fleet,
    stages: Sequence[Stage],
    *,
    turns: int,
    rounds: int,
    processes: int,
    bundle: Bundle,
    report: Callable[[str], None],
) -> list[list[Scaled]]:
    """A fleet's rounds on each stage, for each stage in order.

    Every stage makes its first round, then every stage the second, backwards, and so on: a phase in which the machine
    is slow is one of all. Coordinators and workers run one of every so many ``turns``
    (:func:`benchmarks.load.slow_cores.slow_cores`). Sums are exact, so that workers add up, too. Raises as
    :func:`take_turns` does.
    """
    config = patient_config(
        "scale",
        _METHOD,
        _PARAMETERS,
        rounds=rounds,
        selected=fleet.selected,
        registered=fleet.agents,
        wait=_WAIT_SECONDS * len(stages),  # for the rounds of the others, too
    )
    config = msgspec.structs.replace(config, exact_sums=True, evaluate_every=rounds + 1, max_devices=fleet.agents)
    found: list[list[Scaled]] = [[] for _ in stages]
    slow = f", 1/{turns} of a core each" if turns > 1 else ""
    with ExitStack() as stack:
        casts = []
        for stage in stages:
            entered = _cast(
                fleet,
                stage.broker,
                bundle,
                config,
                stage.folder / "run",
                processes=processes,
                workers=stage.workers,
            )
            casts.append(stack.enter_context(entered))
            casts[-1].asked(1)  # now, so that no more devices connect at a time than one fleet has
        for number in range(1, rounds + 1):
            order = range(len(stages)) if number % 2 else reversed(range(len(stages)))
            for place in order:
                stage, cast = stages[place], casts[place]
                report(f"{fleet} agents, {stage.workers} workers{slow}: round {number}")
                with slow_cores([cast.lead.pid, *children_of(cast.lead.pid)], turns):
                    served, used = cast.timed(cast.lead, None)
                found[place].append(Scaled(served, *used, resident_of(stage.broker.pid)))
                if number < rounds:
                    cast.asked(number + 1)  # now, so that it does nothing in the others' rounds
                else:
                    cast.check(rounds * fleet.selected)
    return found


@dataclass(frozen=True)
class _Cast:
    """The processes of a run: ``lead`` is the coordinator, ``crowds`` are the devices, until ``stack`` ends.

    ``model`` and ``update`` are bytes of a frame.
    """

    stack: ExitStack
    broker: MeasuredBroker
    lead: Child
    crowds: Sequence[Child]
    model: int
    update: int

    def asked(self, number: int) -> Asking:
        """Wait until round ``number`` is about to begin, and have the devices make its updates."""
        asking: Asking = self.lead.receive(_WAIT_SECONDS, self.crowds)
        for crowd in self.crowds:
            crowd.send((number, asking.clients))
        for crowd in self.crowds:
            crowd.receive(_WAIT_SECONDS)
        return asking

    def timed(self, child: Child, word: object) -> tuple[Any, tuple[float, float]]:
        """What ``child`` makes of a word, and the CPU seconds of broker and devices meanwhile."""
        before = self._cpu()
        child.send(word)
        answer = child.receive(_WAIT_SECONDS, self.crowds)
        after = self._cpu()
        return answer, (after[0] - before[0], after[1] - before[1])

    def _cpu(self) -> tuple[float, float]:
        return cpu_seconds(self.broker.pid), sum(cpu_seconds(crowd.pid) for crowd in self.crowds)

    def check(self, expected: int) -> None:
        """Wait for the end; RunError where the devices know of another number of accepted updates."""
        self.lead.receive(_WAIT_SECONDS, self.crowds)  # its farewell, before which the last devices may not know
        for crowd in self.crowds:
            crowd.send(None)
        accepted = sum(crowd.receive(_WAIT_SECONDS) for crowd in self.crowds)
        if accepted != expected:
            raise RunError(f"The devices know of {accepted} accepted updates, not {expected}.")


@contextmanager
def _cast(
    fleet: Fleet,
    broker: MeasuredBroker,
    bundle: Bundle,
    config: RunConfig,
    root: Path,
    *,
    processes: int,
    workers: int = 0,
) -> Iterator[_Cast]:
    """A run over ``broker``: its coordinator with so many ``workers``, and its devices."""
    model, update = _sizes(bundle, config)
    names = [_name(number) for number in range(fleet.agents)]
    with ExitStack() as stack:
        place = Place(broker.address, bundle.root, config)
        lead = stack.enter_context(
            Child("coordinator", coordinator.main, place, root, workers, parent=workers > 0)
        )
        crowds = [
            stack.enter_context(Child("devices", devices.main, place, names[i::processes], model, update))
            for i in range(processes)
        ]
        yield _Cast(stack, broker, lead, crowds, model, update)
