"""One simulated run of a benchmark: what it is, what it found, and how it is made."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.code_version import code_of
from benchmarks.hostile import HostileSettings
from benchmarks.setups import setup_of
from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from device_sim.simulation.time_model import Traffic, traffic_of
from edge_fl.core.bundle import Bundle, Optimizer
from edge_fl.core.errors import ConfigError, RunError
from edge_fl.core.selection import Weights
from edge_fl.data.partition import Kind
from edge_fl.methods.capabilities import MasksLabels, model_width, width_factor
from edge_fl.recipes.recipe import Recipe, open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.runs.privacy import Privacy
from exporter.measure.cases import Case, find_case
from exporter.measure.exported import exported

__all__ = ["Final", "Measured", "Record", "Run", "Watch", "bundle_of", "key_of", "make_run"]

_RUNTIMES = ("torch_eager", "onnx")  # what the stacked trainer runs, and what evaluates and is timed


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is run: a recipe with its parameters, on a model that goes with a data set, by whom and for how long.

    ``lr_drops``, ``lr_warmup``, ``statistics_every``, ``collect_statistics`` and ``evaluate_every`` are
    :class:`edge_fl.runs.config.RunConfig`'s, and ``model`` is that of the data set's setup where it is empty. ``mix``
    says how many clients are of each tier as :class:`device_sim.simulation.settings.Population` does. ``scored`` are
    widths (thousandths): of the last model as many first units are scored, and its zeros counted (:class:`Final`). A
    share ``hostile`` of each round's clients, all of
    ``hostile_tier`` where there is one, make the ``attack`` (:mod:`benchmarks.hostile`), if there is one; the bounds,
    ``robust`` and ``privacy`` are RunConfig's. Clients train on ``device``, ``cpu`` or ``cuda``, by SGD with
    ``weight_decay``.
    """

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
    model: str = ""
    mix: tuple[int, ...] = ()
    scored: tuple[int, ...] = ()
    lr_drops: tuple[float, ...] = ()
    lr_warmup: int = 0
    statistics_every: int = 1
    collect_statistics: bool | None = None
    evaluate_every: int = 1
    attack: str = ""
    hostile: float = 0.0
    hostile_tier: int | None = None
    samples_bound: float | None = None
    norm_bound: float | None = None
    robust: str | None = None
    privacy: Privacy | None = None
    weight_decay: float = 0.0
    device: str = "cpu"

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
            lr_drops=self.lr_drops,
            lr_warmup=self.lr_warmup,
            statistics_every=self.statistics_every,
            collect_statistics=self.collect_statistics,
            seed=self.seed,
            evaluate_every=self.evaluate_every,
            samples_bound=self.samples_bound,
            norm_bound=self.norm_bound,
            robust=self.robust,
            privacy=self.privacy,
        )

    def trainer(self) -> TrainerSettings:
        """What computes it, with attackers where there are any; raises ConfigError when there is no such attack."""
        if not self.attack:
            return TrainerSettings("stacked", device=self.device)
        return HostileSettings(
            "stacked", device=self.device, attack=self.attack, share=self.hostile, tier=self.hostile_tier
        )

    def population(self) -> Population:
        """Who takes part; raises DataError when the partition is none."""
        return Population(self.clients, self.tiers, Kind.parse(self.partition), self.mix)

    def case(self) -> Case:
        """The model; raises ModelError when there is none, and ConfigError when it goes with another data set."""
        case = find_case(self.model or setup_of(self.dataset).model)
        if case.dataset != self.dataset:
            raise ConfigError(
                f"The model '{case.name}' is for {case.dataset}, not {self.dataset}: choose another."
            )
        return case

    def in_effect(self) -> dict[str, Any]:
        """All the parameters that it trains with, defaults too."""
        return self.open().parameters


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A round: held-out accuracy (a fraction) and loss where the model was evaluated, the mean bytes of an update, what
    the clock needs, and the CPU seconds of training its clients (frames and checks too; one thread).
    """

    accuracy: float | None
    loss: float | None
    uplink: float
    traffic: Traffic
    cpu: float


class Final(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model that a run ended with.

    ``accuracy`` (a fraction) is by the width, in thousandths, of its first units, with the factor that the method gives
    such a model (:func:`edge_fl.methods.capabilities.width_factor`); ``unpruned`` is that of the weights that training
    would have gone on from, which differ where a method prunes; ``nonzero`` is the share of its parameters that are not
    zero.
    """

    accuracy: dict[int, float]
    unpruned: float
    nonzero: float


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a run has found, or the sentence with which it failed.

    ``in_effect`` are all parameters at the time, so that a run is made again when a default has changed, and
    ``dense`` the bytes of a frame that drops nothing. ``final`` is there where the run has widths to be scored, and
    ``accelerator`` says which trained it, if any, and ``code`` what :func:`benchmarks.code_version.code_of` told then
    (empty in records of before).
    """

    run: Run
    in_effect: dict[str, Any]
    dense: int = 0
    rounds: list[Measured] = []
    failed: str = ""
    final: Final | None = None
    accelerator: str = ""
    code: dict[str, str] = {}

    @property
    def curve(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The rounds that the model was evaluated after, and its accuracies (fractions)."""
        return np.array(list(self.by_round)), np.array(list(self.by_round.values()))

    @property
    def by_round(self) -> dict[int, float]:
        """The accuracies (fractions) by the round that the model was evaluated after."""
        return {n: m.accuracy for n, m in enumerate(self.rounds, start=1) if m.accuracy is not None}

    @property
    def key(self) -> bytes:
        """The same for two runs that are one."""
        return key_of(self.run, self.in_effect)


def key_of(run: Run, in_effect: dict[str, Any]) -> bytes:
    """What tells a run from all others: everything that it is made of, however its parameters were given, or how often
    it was looked at.
    """
    plain = msgspec.structs.replace(run, parameters={}, evaluate_every=1)
    return msgspec.json.encode([plain, in_effect], order="sorted")


def bundle_of(run: Run, cache: Path, report: Callable[[str], None]) -> Bundle:
    """What ``run`` trains, from ``cache`` or exported to it; raises as the exporter does."""
    optimizer, method = Optimizer(clip=run.clip, weight_decay=run.weight_decay), run.open().method
    variants = tuple(dict.fromkeys(("plain", method.variant)))
    statistics = (
        tuple(sorted({*run.scored, *run.parameters.get("widths", ())}, reverse=True)) if run.scored else ()
    )
    return exported(
        run.case(),
        _RUNTIMES,
        cache,
        report,
        optimizer=optimizer,
        variants=variants,
        statistics=statistics,
        masks_labels=isinstance(method, MasksLabels) and method.masks_labels,
    )


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
    watch = Watch(run.rounds, report)
    try:
        with TemporaryDirectory() as scratch:
            simulation = _simulation(run, bundle, Path(scratch) / "run", watch)
            summary = simulation.run()
            final = _final(run, simulation) if run.scored else None
    except RunError as error:
        return Record(run=run, in_effect=run.in_effect(), failed=str(error), code=code_of(run.open()))
    rounds = [_measured(run, metrics, cpu) for metrics, cpu in zip(summary.rounds, watch.cpu, strict=True)]
    return Record(
        run=run,
        in_effect=run.in_effect(),
        dense=summary.dense,
        rounds=rounds,
        final=final,
        accelerator=_accelerator(run.device),
        code=code_of(run.open()),
    )


def _accelerator(device: str) -> str:
    if device == "cpu":
        return ""
    return f"{torch.cuda.get_device_name()} with torch {torch.__version__}"


def _simulation(run: Run, bundle: Bundle, root: Path, observer: Observer) -> Simulation:
    return Simulation(
        bundle=bundle,
        config=run.config(),
        population=run.population(),
        trainer=run.trainer(),
        root=root,
        observer=observer,
    )


def _final(run: Run, simulation: Simulation) -> Final:
    outcome, method = simulation.final_weights, run.open().method
    width, factor = model_width(method), partial(width_factor, method, simulation.bundle.manifest)
    names = [tensor.name for tensor in simulation.bundle.layout.parameters]
    return Final(
        accuracy={each: _share_right(simulation, outcome, each, factor(each)) for each in run.scored},
        unpruned=_share_right(simulation, simulation.weights, width, factor(width)),
        nonzero=sum(int(np.count_nonzero(outcome[name])) for name in names)
        / sum(outcome[name].size for name in names),
    )


def _share_right(simulation: Simulation, weights: Weights, width: int, factor: float) -> float:
    found = simulation.score(weights, width, factor)
    assert found is not None  # all data sets of the experiments have a test split
    return found.first


def _measured(run: Run, metrics: RoundMetrics, cpu: float) -> Measured:
    sizes = metrics.uplink.values()
    traffic = traffic_of(metrics, run.population().tier)
    return Measured(metrics.first, metrics.loss, sum(sizes) / len(sizes), traffic, cpu)


class Watch(Observer):
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
        accuracy = "" if metrics.first is None else f"accuracy {metrics.first:.1%}, "
        self._report(f"round {metrics.round} of {self._rounds}, {accuracy}{self.cpu[-1]:.2f} s of training")
