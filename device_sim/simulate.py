"""A run in this process: the tasks, frames, checks and rules of a fleet, without a network between."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker.acceptance import Expected, check_update
from broker.config import RunConfig
from broker.evaluation import Evaluator, Score
from broker.model import GlobalModel
from broker.observer import Observer
from broker.registry import Device, Registry
from broker.run_folder import RoundMetrics, RunFolder, check_no_run
from broker.session import check_recipe, digest_of, open_bundle, read_settings
from broker.store import Store, local_url
from broker.summary import RunSummary, draw
from broker.tasks import make_task
from device_sim.settings import Population, SimulationSettings, TrainerSettings
from edge_fl import __version__
from edge_fl.bundle import Bundle
from edge_fl.data.partition import partition
from edge_fl.data.registry import load_dataset
from edge_fl.errors import ConfigError
from edge_fl.recipe import open_recipe
from edge_fl.selection import Weights
from edge_fl.server_half import State
from edge_fl.transport.transfer import ref_of
from edge_fl.update import Visit, assigned_pattern
from edge_fl.wire.frame import Frame, decode_frame
from edge_fl.wire.messages import PROTOCOL, Ref, Register, Task

__all__ = ["Simulation", "TrainedRound"]


@dataclass(frozen=True)
class TrainedRound:
    """The clients' mean training loss, the bytes of each update by client, and of all the models sent."""

    loss: float
    uplink: dict[str, int]
    downlink: dict[str, int]


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
    trainer
        What computes their training.
    root
        The run folder.
    observer
        Told of every round, and of every client that is done.
    store
        That of the interrupted run which goes on, as :meth:`resume` opens it; None for a new run.

    Raises
    ------
    ConfigError
        When more clients are to be picked than there are, or the recipe does not fit the bundle.
    StateError
        When the run folder cannot be used.
    """

    def __init__(
        self,
        *,
        bundle: Bundle,
        config: RunConfig,
        population: Population,
        trainer: TrainerSettings,
        root: Path,
        observer: Observer,
        store: Store | None = None,
    ) -> None:
        if config.clients_per_round > population.clients:
            raise ConfigError(
                f"A round cannot pick {config.clients_per_round} of {population.clients} clients; lower it."
            )
        self._recipe = open_recipe(config.method, config.parameters)
        check_recipe(bundle, self._recipe, config, tiers=population.tiers)
        self._bundle, self._config, self._observer = bundle, config, observer
        self._trainer = trainer.open(bundle)
        self._model = GlobalModel(bundle.layout, bundle.weights(), recipe=self._recipe, run=config.run)
        self._states: dict[str, State] = {}
        dataset = load_dataset(bundle.manifest.dataset)
        self._samples, self._evaluator = dataset.train, Evaluator(bundle, dataset, threads=trainer.threads)
        parts = partition(dataset.train, population.clients, population.kind)
        self._parts = {f"client-{i}": part for i, part in enumerate(parts)}
        self._registry = _registered(self._parts, population, trainer)
        self._settings = SimulationSettings(
            str(bundle.root.resolve()), digest_of(bundle), config, population, trainer
        )
        if store is None:
            check_no_run(root)
        # The store comes first: a run that is killed between the two can be continued.
        self._store = store or Store(local_url(root), config.run, msgspec.json.encode(self._settings))
        self._dense = len(self._model.frame())
        try:
            self._rounds = self._store.rounds()
            self._folder = RunFolder(root, config, finished=self._rounds)
            self._recall()
        except BaseException:
            self._store.close()
            raise

    @classmethod
    def resume(cls, root: Path, *, observer: Observer, bundle: Path | None = None) -> "Simulation":
        """Continue the run in ``root`` after its last finished round, as if it had never been interrupted.

        Parameters
        ----------
        bundle
            Where the run's bundle is now; None for where it was.

        Raises
        ------
        StateError
            When ``root`` holds no simulation, or one that cannot be continued.
        BundleError
            When the bundle is not the run's, or cannot be had.
        """
        store = Store(local_url(root))
        try:
            settings = read_settings(store.settings, SimulationSettings, root)
            return cls(
                bundle=open_bundle(settings, root, bundle),
                config=settings.config,
                population=settings.population,
                trainer=settings.trainer,
                root=root,
                observer=observer,
                store=store,
            )
        except BaseException:
            store.close()
            raise

    def _recall(self) -> None:
        """Go on from the last finished round."""
        if self._rounds:
            self._model.recall(len(self._rounds), *self._folder.model(len(self._rounds)))
        for client, number in self._store.accepted().items():
            self._registry[client].accepted = number

    def run(self) -> RunSummary:
        """Run every round that is left; raises RunError when a loss, of training or evaluation, is no longer finite.

        Another process may continue the run once this returns or raises.
        """
        self._observer.started(self._config, self._dense)
        try:
            for number in range(len(self._rounds) + 1, self._config.rounds + 1):
                self._rounds.append(self._run_round(number))
        finally:
            self._store.close()
        weights = self._folder.finish(self.outcome)
        summary = RunSummary(self._config, self._dense, tuple(self._rounds), weights)
        draw(summary)
        return summary

    @property
    def bundle(self) -> Bundle:
        """What is trained."""
        return self._bundle

    @property
    def settings(self) -> SimulationSettings:
        """What the run was begun with."""
        return self._settings

    @property
    def weights(self) -> Weights:
        """The model now: full tensors by name."""
        return self._model.weights

    @property
    def outcome(self) -> Weights:
        """What the run would give if it ended now: full tensors by name."""
        return self._model.outcome

    def score(self, weights: Weights, width: int) -> Score:
        """Evaluate the first units of a model, as :meth:`broker.evaluation.Evaluator.score` does."""
        return self._evaluator.score(weights, width)

    def _run_round(self, number: int) -> RoundMetrics:
        started = time.monotonic()
        trained = self.train_round(number)
        score = self.score(self.outcome, self._recipe.method.model_width)
        metrics = RoundMetrics(
            round=number,
            seconds=time.monotonic() - started,
            accuracy=score.accuracy,
            loss=score.loss,
            train_loss=trained.loss,
            uplink=trained.uplink,
            downlink=trained.downlink,
            excused={},
            rejections={},
        )
        self._folder.keep_model(number, self._model.weights, self._model.learned())
        self._store.close_round(metrics, self._states)
        self._folder.close_round(metrics)
        self._states.clear()
        self._observer.round_closed(metrics)
        return metrics

    def train_round(self, number: int) -> TrainedRound:
        """Pick clients, train them, and make the new model of their updates; nothing is evaluated or kept."""
        config, content = self._config, self._model.frame()
        picked = self._registry.pick(
            config.clients_per_round, seed=config.seed, round=number, attempt=0, excluding=set()
        )
        self._observer.round_started(number, picked)
        sizes: dict[str, int] = {}
        downlink = {client: self._downlink(self._registry[client], content) for client in sorted(picked)}
        loss = self._model.aggregate(self._updates(number, picked, content, sizes))
        return TrainedRound(loss, sizes, downlink)

    def _downlink(self, device: Device, model: bytes) -> int:
        """The bytes in which the model reaches a device, which still holds the one it trained last."""
        changes = self._model.changes_since(device.accepted - 1)
        return len(model) if changes is None else sum(map(len, changes))

    def _updates(
        self, number: int, picked: list[str], content: bytes, sizes: dict[str, int]
    ) -> Iterator[tuple[int, Frame]]:
        """What the coordinator gets of the round's devices, in the order of their ids, each with its tier.

        Only as many updates are in memory as the trainer trains at once; the states that the clients are left with stay
        there until the round is closed. ``sizes`` are filled in as they come.
        """
        model = decode_frame(content, self._bundle.layout)
        devices = [self._registry[client] for client in sorted(picked)]
        ref = ref_of(content)
        tasks = [self._task(device, number, ref) for device in devices]
        visits = (self._visit(device, task, model) for device, task in zip(devices, tasks, strict=True))
        updates = self._trainer.updates(visits)
        for device, task, update in zip(devices, tasks, updates, strict=True):
            frame = check_update(update.frame, self._expected(device, task))
            self._states[device.client], device.accepted = update.state, number
            sizes[device.client] = len(update.frame)
            self._observer.device(device.client, "accepted")
            yield device.profile.tier, frame

    def _task(self, device: Device, number: int, model: Ref) -> Task:
        return make_task(
            self._config,
            self._recipe,
            self._bundle.layout,
            client=device.client,
            tier=device.profile.tier,
            round=number,
            accepted=device.accepted,
            model=model,
        )

    def _visit(self, device: Device, task: Task, model: Frame) -> Visit:
        return Visit(
            task,
            client=device.client,
            manifest=self._bundle.manifest,
            model=model,
            samples=self._samples.take(self._parts[device.client]),
            state=self._store.state(device.client),
        )

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


def _registered(parts: dict[str, NDArray[np.int64]], population: Population, trainer: TrainerSettings) -> Registry:
    registry = Registry()
    for i, (client, part) in enumerate(parts.items()):
        profile = Register(
            protocol=PROTOCOL,
            agent=__version__,
            runtime=trainer.programs,
            samples=len(part),
            tier=population.tier(i),
        )
        registry.register(client, profile)
    return registry
