"""One simulated run of a benchmark: what it is, what it found, and how it is made."""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from broker.config import RunConfig
from broker.observer import Observer
from broker.run_folder import RoundMetrics
from broker.summary import RunSummary
from device_sim.clock import Traffic, traffic_of
from device_sim.settings import Population, TrainerSettings
from device_sim.simulate import Simulation
from edge_fl.bench.cases import Case, find_case
from edge_fl.bench.exported import exported
from edge_fl.bench.setups import setup_of
from edge_fl.bundle import Bundle, Optimizer
from edge_fl.data.partition import Kind
from edge_fl.errors import RunError
from edge_fl.recipe import Recipe, open_recipe

__all__ = ["Measured", "Record", "Run", "bundle_of", "case_of", "key_of", "make_run"]

_RUNTIMES = ("torch_eager", "onnx")  # what the stacked trainer runs, and what evaluates and is timed


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is run: a recipe with its parameters, on the model that goes with a data set, by whom and for how long."""

    dataset: str
    recipe: str
    parameters: dict[str, Any]
    seed: int
    rounds: int
    clients: int
    clients_per_round: int
    partition: str
    tiers: int
    local_steps: int
    batch: int
    lr: float
    clip: float | None

    def open(self) -> Recipe:
        """The recipe; raises ConfigError when it, or a parameter, is unknown."""
        return open_recipe(self.recipe, self.parameters)

    def config(self) -> RunConfig:
        """The run as a coordinator has it; raises ConfigError when it makes no sense."""
        return RunConfig(
            run="bench",
            method=self.recipe,
            parameters=self.parameters,
            rounds=self.rounds,
            clients_per_round=self.clients_per_round,
            local_steps=self.local_steps,
            batch=self.batch,
            lr=self.lr,
            seed=self.seed,
        )

    def population(self) -> Population:
        """Who takes part; raises DataError when the partition is none."""
        return Population(self.clients, self.tiers, Kind.parse(self.partition))

    def in_effect(self) -> list[dict[str, Any]]:
        """All the parameters that each tier trains with, defaults too."""
        recipe = self.open()
        return [recipe.for_tier(tier) for tier in range(self.tiers)]


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A round: held-out accuracy (a fraction) and loss, the mean bytes of an update, what the clock needs, and the
    CPU seconds of training its clients (frames and checks too; one thread).
    """

    accuracy: float
    loss: float
    uplink: float
    traffic: Traffic
    cpu: float


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a run has found, or the sentence with which it failed.

    ``in_effect`` are all parameters by tier at the time, so that a run is made again when a default has changed, and
    ``dense`` the bytes of a frame that drops nothing.
    """

    run: Run
    in_effect: list[dict[str, Any]]
    dense: int = 0
    rounds: list[Measured] = []
    failed: str = ""

    @property
    def key(self) -> bytes:
        """The same for two runs that are one."""
        return key_of(self.run, self.in_effect)


def key_of(run: Run, in_effect: list[dict[str, Any]]) -> bytes:
    """What tells a run from all others: everything that it is made of, however its parameters were given."""
    plain = msgspec.structs.replace(run, parameters={})
    return msgspec.json.encode([plain, in_effect], order="sorted")


def case_of(dataset: str) -> Case:
    """The model that goes with a data set; raises ConfigError when the data set has no setup."""
    return find_case(setup_of(dataset).model)


def bundle_of(run: Run, cache: Path, report: Callable[[str], None]) -> Bundle:
    """What ``run`` trains, from ``cache`` or exported to it; raises as the exporter does."""
    optimizer = Optimizer(clip=run.clip)
    variants = tuple(dict.fromkeys(("plain", run.open().method.variant)))
    return exported(case_of(run.dataset), _RUNTIMES, cache, report, optimizer=optimizer, variants=variants)


def make_run(run: Run, bundle: Bundle, report: Callable[[str], None]) -> Record:
    """Simulate ``run`` with the stacked trainer; a loss that is no longer finite is a finding, too.

    Parameters
    ----------
    report
        Told of every round.

    Raises
    ------
    ConfigError, DataError
        When the run makes no sense, or its data cannot be had.
    """
    watch = _Watch(run.rounds, report)
    try:
        with TemporaryDirectory() as scratch:
            summary = _simulated(run, bundle, Path(scratch) / "run", watch)
    except RunError as error:
        return Record(run=run, in_effect=run.in_effect(), failed=str(error))
    rounds = [_measured(run, metrics, cpu) for metrics, cpu in zip(summary.rounds, watch.cpu, strict=True)]
    return Record(run=run, in_effect=run.in_effect(), dense=summary.dense, rounds=rounds)


def _simulated(run: Run, bundle: Bundle, root: Path, observer: Observer) -> RunSummary:
    simulation = Simulation(
        bundle=bundle,
        config=run.config(),
        population=run.population(),
        trainer=TrainerSettings("stacked"),
        root=root,
        observer=observer,
    )
    return simulation.run()


def _measured(run: Run, metrics: RoundMetrics, cpu: float) -> Measured:
    sizes = metrics.uplink.values()
    traffic = traffic_of(metrics, run.tiers)
    return Measured(metrics.accuracy, metrics.loss, sum(sizes) / len(sizes), traffic, cpu)


class _Watch(Observer):
    """Times the training of each round, and tells of the round once it is closed."""

    def __init__(self, rounds: int, report: Callable[[str], None]) -> None:
        self.cpu: list[float] = []
        self._rounds, self._report = rounds, report
        self._started = self._trained = 0.0

    def round_started(self, number: int, selected: list[str]) -> None:
        """The clients are picked."""
        del number, selected
        self._started = time.process_time()

    def device(self, client: str, status: str) -> None:
        """A client is done; the last one of a round ends its training."""
        del client, status
        self._trained = time.process_time()

    def round_closed(self, metrics: RoundMetrics) -> None:
        """The model is evaluated."""
        self.cpu.append(self._trained - self._started)
        self._report(
            f"round {metrics.round} of {self._rounds}, accuracy {metrics.accuracy:.1%}, "
            f"{self.cpu[-1]:.2f} s of training"
        )
