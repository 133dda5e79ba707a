"""A run in this process: the tasks, frames, checks and rules of a fleet, without a network between.

Every client is trained through a runtime, as its agent would, so that a simulation gives the bits that a fleet
of the same clients gives.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from broker.acceptance import Expected, check_update
from broker.config import RunConfig
from broker.evaluation import Evaluator
from broker.model import GlobalModel
from broker.observer import Observer
from broker.registry import Device, Registry
from broker.run_folder import RoundMetrics, RunFolder
from broker.session import check_recipe
from broker.summary import RunSummary, draw
from broker.tasks import make_task
from edge_fl import __version__
from edge_fl.bundle import Bundle
from edge_fl.data.partition import IID, Kind, partition
from edge_fl.data.registry import load_dataset
from edge_fl.errors import ConfigError
from edge_fl.methods.base import State
from edge_fl.recipe import open_recipe
from edge_fl.runtimes.base import open_runtime
from edge_fl.transport.transfer import ref_of
from edge_fl.update import assigned_pattern, make_update
from edge_fl.wire.frame import Frame, decode_frame
from edge_fl.wire.messages import PROTOCOL, Register, Task

__all__ = ["Population", "Simulation"]


@dataclass(frozen=True)
class Population:
    """The clients of a simulation: ``client-0`` ..., parts of the bundle's data set cut as ``kind`` says, client i in
    tier i mod ``tiers``, all on one runtime.
    """

    clients: int
    tiers: int = 1
    runtime: str = "onnx"
    kind: Kind = IID

    def __post_init__(self) -> None:
        if self.clients < 1 or self.tiers < 1:
            raise ConfigError(f"A simulation needs clients and tiers, not {self.clients} in {self.tiers} tiers.")


class Simulation:
    """One simulated run.

    Parameters
    ----------
    bundle
        What is trained.
    config
        How; ``clients_per_round`` of the population are picked a round, as a coordinator picks devices.
    population
        By whom.
    root
        The run folder.
    observer
        Told of every round.

    Raises
    ------
    ConfigError
        When more clients are to be picked than there are, or the recipe does not fit the bundle.
    """

    def __init__(
        self, *, bundle: Bundle, config: RunConfig, population: Population, root: Path, observer: Observer
    ) -> None:
        if config.clients_per_round > population.clients:
            raise ConfigError(
                f"A round cannot pick {config.clients_per_round} of {population.clients} clients; lower it."
            )
        self._recipe = open_recipe(config.method, config.parameters)
        check_recipe(bundle, self._recipe, config)
        self._bundle, self._config, self._population, self._observer = bundle, config, population, observer
        self._runtime = open_runtime(population.runtime, bundle)
        self._model = GlobalModel(bundle.layout, bundle.weights())
        dataset = load_dataset(bundle.manifest.dataset)
        self._train, self._evaluator = dataset.train, Evaluator(bundle, dataset)
        parts = partition(dataset.train, population.clients, population.kind)
        self._parts = {f"client-{i}": part for i, part in enumerate(parts)}
        self._registry = _registered(self._parts, population)
        self._folder = RunFolder(root, config)
        self._states: dict[str, State] = {}

    def run(self) -> RunSummary:
        """Run every round; raises RunError when a loss is no longer finite."""
        dense = len(self._model_frame(1))
        self._observer.started(self._config, dense)
        rounds = [self._run_round(number) for number in range(1, self._config.rounds + 1)]
        summary = RunSummary(self._config, dense, tuple(rounds), self._folder.finish(self._model.weights))
        draw(summary)
        return summary

    def _model_frame(self, number: int) -> bytes:
        return self._model.frame(run=self._config.run, round=number, method=self._recipe.name)

    def _run_round(self, number: int) -> RoundMetrics:
        started = time.monotonic()
        content = self._model_frame(number)
        model = decode_frame(content, self._bundle.layout)
        config = self._config
        picked = self._registry.pick(
            config.clients_per_round, seed=config.seed, round=number, attempt=0, excluding=set()
        )
        self._observer.round_started(number, picked)
        reports = {client: self._visit(self._registry[client], number, content, model) for client in picked}
        ordered = [reports[client] for client in sorted(reports)]
        updates = ((self._registry[u.header.client].profile.tier, u) for u, _ in ordered)
        train_loss = self._model.aggregate(self._recipe.method, number, updates)
        score = self._evaluator.score(self._model.weights)
        metrics = RoundMetrics(
            round=number,
            seconds=time.monotonic() - started,
            accuracy=score.accuracy,
            loss=score.loss,
            train_loss=train_loss,
            uplink={update.header.client: size for update, size in ordered},
            downlink=len(content) * len(picked),
            excused={},
            rejections={},
        )
        self._folder.close_round(metrics, self._model.weights)
        self._observer.round_closed(metrics)
        return metrics

    def _visit(self, device: Device, number: int, content: bytes, model: Frame) -> tuple[Frame, int]:
        """What a device does in a round, and what the coordinator does with it; the update and its size."""
        task = make_task(
            self._config,
            self._recipe,
            self._bundle.layout,
            client=device.client,
            tier=device.profile.tier,
            round=number,
            accepted=device.accepted,
            model=ref_of(content),
        )
        update = make_update(
            task,
            client=device.client,
            model=model,
            runtime=self._runtime,
            samples=self._train.take(self._parts[device.client]),
            state=self._states.get(device.client, {}),
        )
        frame = check_update(update.frame, self._expected(device, task))
        self._states[device.client], device.accepted = update.state, number
        return frame, len(update.frame)

    def _expected(self, device: Device, task: Task) -> Expected:
        return Expected(
            layout=self._bundle.layout,
            recipe=self._recipe,
            run=task.run,
            round=task.round,
            version=self._model.version,
            client=device.client,
            tier=device.profile.tier,
            samples=device.profile.samples,
            assigned=assigned_pattern(task, self._bundle.layout),
        )


def _registered(parts: dict[str, NDArray[np.int64]], population: Population) -> Registry:
    registry = Registry()
    for i, (client, part) in enumerate(parts.items()):
        profile = Register(
            protocol=PROTOCOL,
            agent=__version__,
            runtime=population.runtime,
            samples=len(part),
            tier=i % population.tiers,
        )
        registry.register(client, profile)
    return registry
