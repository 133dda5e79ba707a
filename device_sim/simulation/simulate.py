"""A run in this process: the tasks, frames, checks and rules of a fleet, without a network between."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker.acceptance import Expected, check_update
from broker.client_selection import ClientSelection
from broker.database import local_url
from broker.model import GlobalModel
from broker.observer import Observer
from broker.registry import Device, Registry
from broker.run_folder import RunFolder, check_no_run
from broker.session import check_recipe, digest_of, open_bundle, read_settings
from broker.statistics_round import StatisticsRound, ask, gathers, widths_asked
from broker.store import Store
from broker.summary import RunSummary, draw
from broker.tasks import make_task
from device_sim.simulation.settings import Population, SimulationSettings, TrainerSettings
from device_sim.simulation.time_model import TIER_SLOWDOWNS
from device_sim.simulation.trainer import Call
from edge_fl import __version__
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.errors import ConfigError, StateError
from edge_fl.core.selection import Weights
from edge_fl.core.server_half import State
from edge_fl.data.fit import check_fit
from edge_fl.data.partition import partition
from edge_fl.data.registry import Samples
from edge_fl.data.splits import train_samples
from edge_fl.methods.base import of_tier
from edge_fl.recipes.own import use_code
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.runtimes.base import open_runtime
from edge_fl.training.batch_statistics import make_statistics
from edge_fl.training.evaluation import Score
from edge_fl.training.evaluator import open_evaluator
from edge_fl.training.update import assigned_pattern
from edge_fl.wire.frame import Frame, decode_frame
from edge_fl.wire.messages import PROTOCOL, Gathered, Register, Task

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
    data
        What is cut over the clients (:func:`edge_fl.data.splits.train_samples`), or the samples themselves.
    test
        Held-out samples; None for what ``config.test_data`` says.
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
        data: str | Samples | None = None,
        test: Samples | None = None,
    ) -> None:
        if config.tiers != "registered" or config.selection != "random" or config.buffer:
            raise ConfigError(
                "A simulation's clients differ neither in speed nor in who is there: its tiers are registered, its "
                "selection is random, and it has no buffer."
            )
        if config.clients_per_round > population.clients:
            raise ConfigError(
                f"A round cannot pick {config.clients_per_round} of {population.clients} clients; lower it."
            )
        use_code(config.code)
        trainer = msgspec.structs.replace(trainer, code=config.code)
        self._recipe = open_recipe(config.method, config.parameters)
        check_recipe(bundle, self._recipe, config, tiers=population.tiers)
        self._bundle, self._config, self._observer = bundle, config, observer
        self._trainer = trainer.open(bundle)
        self._selection = ClientSelection("random", config.seed)
        self._model = GlobalModel(bundle.layout, bundle.weights(), recipe=self._recipe, run=config.run)
        self._states: dict[str, State] = {}
        given = data if isinstance(data, Samples) else train_samples(data, bundle.manifest)
        check_fit(given, bundle.manifest)
        self._samples = given
        self._evaluator = open_evaluator(bundle, config, samples=test, threads=trainer.threads)
        parts = partition(given, population.clients, population.kind)
        self._parts = {f"client-{i}": part for i, part in enumerate(parts)}
        self._registry = _registered(self._parts, population, trainer)
        self._settings = SimulationSettings(
            bundle=str(bundle.root.resolve()),
            manifest=digest_of(bundle),
            config=config,
            population=population,
            trainer=trainer,
            data=data if isinstance(data, str) else None,
            objects=isinstance(data, Samples) or test is not None,
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
    def resume(
        cls,
        root: Path,
        *,
        observer: Observer,
        bundle: Path | None = None,
        data: Samples | None = None,
        test: Samples | None = None,
    ) -> "Simulation":
        """Continue the run in ``root`` after its last finished round, as if it had never been interrupted.

        Parameters
        ----------
        bundle
            Where the run's bundle is now; None for where it was.
        data, test
            The samples once more, of a run that was given objects.

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
            if settings.objects and data is None:
                raise StateError(
                    f"The run in '{root}' was given data as objects: resume it from Python, with these."
                )
            return cls(
                bundle=open_bundle(settings, root, bundle),
                config=settings.config,
                population=settings.population,
                trainer=settings.trainer,
                root=root,
                observer=observer,
                store=store,
                data=settings.data if data is None else data,
                test=test,
            )
        except BaseException:
            store.close()
            raise

    def _recall(self) -> None:
        """Go on from the last finished round."""
        if self._rounds:
            self._model.recall(len(self._rounds), *self._folder.checkpoints.model(len(self._rounds)))
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
            self.close()
        weights = self._folder.finish(self.outcome)
        summary = RunSummary(self._config, self._dense, tuple(self._rounds), weights)
        draw(summary)
        return summary

    def close(self) -> None:
        """Let another process have the run, and end those that train; nothing is run after that."""
        self._store.close()
        self._trainer.close()

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

    def score(self, weights: Weights, width: int) -> Score | None:
        """Evaluate the first units of a model, as :meth:`edge_fl.training.evaluator.Evaluator.score` does."""
        return self._evaluator.score(weights, width)

    def _run_round(self, number: int) -> RoundMetrics:
        started = time.monotonic()
        trained, gathered = self.train_round(number), self._gather(number)
        score = None
        if self._config.evaluates(number):
            score = self.score(self.outcome, self._recipe.method.model_width)
        metrics = RoundMetrics(
            round=number,
            seconds=time.monotonic() - started,
            scores={} if score is None else dict(score.scores),
            loss=None if score is None else score.loss,
            train_loss=trained.loss,
            uplink=trained.uplink,
            downlink=trained.downlink,
            excused={},
            rejections={},
            tiers={client: self._registry[client].profile.tier for client in trained.uplink},
            gathered=gathered,
        )
        self._folder.checkpoints.keep(number, self._model.weights, self._model.learned())
        self._store.close_round(metrics, self._states)
        self._folder.close_round(metrics)
        self._states.clear()
        self._observer.round_closed(metrics)
        return metrics

    def train_round(self, number: int) -> TrainedRound:
        """Pick clients, train them, and make the new model of their updates; nothing is evaluated or kept."""
        config, content = self._config, self._model.frame()
        picked = self._selection.pick(self._registry.present(), config.clients_per_round, round=number)
        self._observer.round_started(number, picked)
        sizes: dict[str, int] = {}
        took: dict[str, float] = {}
        downlink = {client: self._downlink(self._registry[client], content) for client in sorted(picked)}
        loss = self._model.aggregate(self._updates(number, picked, content, sizes, took), took)
        return TrainedRound(loss, sizes, downlink)

    def _gather(self, number: int) -> dict[int, int]:
        """Give the final model the BatchNorm statistics of every client's data, as a coordinator does."""
        if number < self._config.rounds or not gathers(self._recipe.method, self._bundle.manifest):
            return {}
        bundle, content = self._bundle, self._model.frame()
        runtime = open_runtime(self._settings.trainer.programs, bundle, threads=self._settings.trainer.threads)
        model, current = decode_frame(content, bundle.layout), StatisticsRound(number, manifest=bundle.manifest)
        current.tiers = {client: self._registry[client].profile.tier for client in self._registry.present()}
        for client, width in widths_asked(self._recipe.method, bundle.manifest, current.tiers).items():
            task = ask(self._config, number, ref_of(content), width)
            samples = self._samples.take(self._parts[client])
            frame = make_statistics(task, client=client, model=model, runtime=runtime, samples=samples)
            current.tasks[client] = task
            current.take(client, Gathered(task.run, number, frame), self._registry[client].profile)
        self._model.weights = current.combined(self._model.weights)
        return current.samples()

    def _downlink(self, device: Device, model: bytes) -> int:
        """The bytes in which the model reaches a device, which still holds the one it trained last."""
        changes = self._model.changes_since(device.accepted - 1)
        return len(model) if changes is None else sum(map(len, changes))

    def _updates(
        self, number: int, picked: list[str], content: bytes, sizes: dict[str, int], took: dict[str, float]
    ) -> Iterator[tuple[int, Frame]]:
        """What the coordinator gets of the round's devices, in the order of their ids, each with its tier.

        Only as many updates are in memory as the trainer trains at once; the states that the clients are left with stay
        there until the round is closed. ``sizes`` are filled in as they come, and so are the seconds that each
        ``took`` in a world where a tier trains and sends a megabyte a second over its slowdown.
        """
        devices = [self._registry[client] for client in sorted(picked)]
        ref, reach = ref_of(content), self._model.reach
        tasks = [self._task(device, number, ref) for device in devices]
        calls = (self._call(device, task) for device, task in zip(devices, tasks, strict=True))
        updates = self._trainer.updates(content, calls, len(tasks))
        for device, task, update in zip(devices, tasks, updates, strict=True):
            frame = check_update(update.frame, self._expected(device, task, reach))
            self._states[device.client], device.accepted = update.state, number
            sizes[device.client] = len(update.frame)
            took[device.client] = 1e-6 * len(update.frame) * of_tier(TIER_SLOWDOWNS, device.profile.tier)
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
            weights=self._model.weights,
        )

    def _call(self, device: Device, task: Task) -> Call:
        client = device.client
        return Call(task, client, self._samples.take(self._parts[client]), self._store.state(client))

    def _expected(self, device: Device, task: Task, reach: float) -> Expected:
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
            reach=reach,
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
