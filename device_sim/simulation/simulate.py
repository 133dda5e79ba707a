"""A run in this process: the coordinator of a fleet, with clients that train here."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker.accountant import settled
from broker.buffered import check_buffered
from broker.coordinator import Coordinator, TrainedRound
from broker.database import local_url
from broker.defence import Defence
from broker.initial_weights import keep_initial_weights, kept_initial_weights, open_initial_weights
from broker.model import GlobalModel
from broker.observer import Observer
from broker.privacy import Lots, Mechanism
from broker.recipe_checks import check_recipe
from broker.run_folder import RunFolder, check_no_run
from broker.secure_aggregation.round_total import SimulatedTotal
from broker.secure_aggregation.settings import plan_of
from broker.settings import open_bundle, read_settings
from broker.statistics_round import with_collection
from broker.store import Store
from broker.summary import RunSummary
from broker.sums import device_here
from broker.tiers import open_tiers
from device_sim.simulation.clients import Clients
from device_sim.simulation.fleet import Parts, SimulatedFleet
from device_sim.simulation.local_time import Local, measured
from device_sim.simulation.schedule import DrawnSchedule, Schedule
from device_sim.simulation.settings import Population, RayCluster, SimulationSettings, TrainerSettings, World
from device_sim.simulation.timed_fleet import FLEET, TimedFleet
from edge_fl.aggregation.spool import Spool
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, StateError
from edge_fl.core.selection import Weights
from edge_fl.core.server_half import State
from edge_fl.data.registry import Samples
from edge_fl.data.splits import train_samples
from edge_fl.recipes.own import use_code, use_code_again
from edge_fl.recipes.recipe import Recipe, open_recipe
from edge_fl.runs.config import RunConfig, begun
from edge_fl.runtimes.base import open_runtime
from edge_fl.training.evaluation import Score
from edge_fl.training.evaluator import open_evaluator
from edge_fl.training.features import with_features

__all__ = ["Simulation"]


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
    world
        How long clients take, and when they are there; None where no time passes.
    schedule
        When things happened, in place of a ``world`` that draws it; such a run cannot be resumed.
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
        world: World | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        _check(config, population, timed=bool(world or schedule))
        use_code(config.code)
        recipe, config = open_recipe(config.method, config.parameters), settled(config, population.clients)
        if store is None:
            config = with_collection(config, recipe.method, bundle.manifest)
        tiers = None if config.tiers == "auto" else population.tiers
        check_recipe(bundle, recipe, config, tiers=tiers, runtime=trainer.programs)
        if config.buffer:
            check_buffered(recipe)
        trainer = msgspec.structs.replace(trainer, code=config.code)
        given = train_samples(data, bundle)
        if world is not None:
            world = measured(world, Local(bundle, config, population, trainer.programs, data=given))
        self._bundle, self._evaluator = (
            bundle,
            open_evaluator(bundle, config, samples=test, threads=trainer.threads, device=_scored_on(trainer)),
        )
        plan = plan_of(config, recipe, bundle.layout)
        start = self._start(root, bundle, config, store)
        self._model = GlobalModel(
            bundle.layout,
            start,
            recipe=recipe,
            run=config.run,
            defence=Defence.of(config, root),
            unseen=None
            if plan is None
            else lambda number: SimulatedTotal(plan(number), Spool(bundle.layout, root)),
            privacy=None if config.privacy is None else Mechanism(config, bundle.layout, Lots(config.seed)),
        )
        if bundle.manifest.features is not None:
            given = with_features(given, open_runtime(trainer.programs, bundle, threads=trainer.threads))
        self._clients = Clients(given, population, trainer.programs)
        self._trainer = trainer.open(bundle)
        place = str(bundle.root.resolve())
        initial = ""
        if store is None:
            check_no_run(root)
            initial = keep_initial_weights(root, config, start)
            known = data if isinstance(data, str) else (bundle.manifest.dataset if data is None else "objects")
            config = begun(
                config,
                recipe.parameters,
                bundle=place,
                bundle_sha256=bundle.digest,
                data=known,
                **_about(population, trainer),
            )
        self._settings = SimulationSettings(
            bundle=place,
            manifest=bundle.digest,
            config=config,
            population=population,
            trainer=trainer,
            data=data if isinstance(data, str) else None,
            objects=isinstance(data, Samples) or test is not None,
            world=world,
            initial=initial,
        )
        # The store comes first: a run that is killed between the two can be continued.
        self._store = store or Store(local_url(root), config.run, msgspec.json.encode(self._settings))
        try:
            self._coordinator = self._open(root, recipe, observer, schedule)
        except BaseException:
            self._store.close()
            raise

    @staticmethod
    def _start(
        root: Path, bundle: Bundle, config: RunConfig, store: Store | None
    ) -> dict[str, NDArray[np.float32]]:
        """The model before the first round; after one its checkpoint says where the run stands."""
        if store is None:
            return open_initial_weights(bundle, config)
        if store.rounds():
            return bundle.weights()
        return kept_initial_weights(root, bundle, read_settings(store.settings, SimulationSettings, root))

    def _open(self, root: Path, recipe: Recipe, observer: Observer, schedule: Schedule | None) -> Coordinator:
        """The coordinator, and the fleet that it asks, as they were after the last finished round."""
        settings, bundle, store, model = self._settings, self._bundle, self._store, self._model
        config, world, finished = settings.config, settings.world, store.rounds()
        dense, tiers = len(model.frame()), open_tiers(config, bundle.layout)
        folder = RunFolder(root, config, finished=finished)
        learned: State = {}
        if finished:
            weights, learned = folder.checkpoints.model(len(finished))
            model.load_state_dict(
                len(finished), weights, {name: learned[name] for name in learned if not name.startswith(FLEET)}
            )
        parts = Parts(
            bundle, recipe, model, self._clients, self._trainer, settings.trainer, tiers, store, observer
        )
        if world is not None:
            schedule = DrawnSchedule(world, self._clients, local_steps=config.local_steps, seed=config.seed)
        fleet = (
            SimulatedFleet(parts)
            if schedule is None
            else TimedFleet(parts, schedule=schedule, folder=folder, run=config.run, learned=learned)
        )
        return Coordinator(
            config=config,
            manifest=bundle.manifest,
            recipe=recipe,
            model=model,
            dense=dense,
            fleet=fleet,
            folder=folder,
            store=store,
            tiers=tiers,
            evaluator=self._evaluator,
            observer=observer,
            flying=fleet.flying(),
        )

    @classmethod
    def resume(
        cls,
        root: Path,
        *,
        observer: Observer,
        bundle: Path | None = None,
        data: Samples | None = None,
        test: Samples | None = None,
        ray: RayCluster | None = None,
    ) -> "Simulation":
        """Continue the run in ``root`` after its last finished round, as if it had never been interrupted.

        Parameters
        ----------
        bundle
            Where the run's bundle is now; None for where it was.
        data, test
            The samples once more, of a run that was given objects.
        ray
            Where the run's Ray cluster is now; None for where it was.

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
            config = settings.config
            use_code_again(config.code, config.about.get("code_sha256", {}))
            return cls(
                bundle=open_bundle(settings, root, bundle),
                config=config,
                population=settings.population,
                trainer=settings.trainer if ray is None else settings.trainer.moved(ray),
                root=root,
                observer=observer,
                store=store,
                data=settings.data if data is None else data,
                test=test,
                world=settings.world,
            )
        except BaseException:
            store.close()
            raise

    def run(self) -> RunSummary:
        """Run every round that is left; raises RunError when a loss, of training or evaluation, is no longer finite.

        Another process may continue the run once this returns or raises.
        """
        try:
            return self._coordinator.run()
        finally:
            self.close()

    def train_round(self, number: int) -> TrainedRound:
        """Have clients train, and make the new model of their updates; nothing is evaluated or kept."""
        return self._coordinator.train_round(number)

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
    def final_weights(self) -> Weights:
        """What the run would give if it ended now: full tensors by name."""
        return self._model.final_weights

    def score(self, weights: Weights, width: int, factor: float = 1.0) -> Score | None:
        """Evaluate the first units of a model, as :meth:`edge_fl.training.evaluator.Evaluator.score` does."""
        return self._evaluator.score(weights, width, factor)


def _check(config: RunConfig, population: Population, *, timed: bool) -> None:
    if not timed and (config.tiers != "registered" or config.selection == "capability" or config.buffer):
        raise ConfigError(
            "Without a world no time passes in a simulation, and a buffer, tiers by time, and selection by capability "
            "mean nothing: give it a --link."
        )
    if config.clients_per_round > population.clients:
        raise ConfigError(
            f"A round cannot pick {config.clients_per_round} of {population.clients} clients; lower it."
        )


def _scored_on(trainer: TrainerSettings) -> str:
    """Where models are evaluated; the hosts that train may have CUDA, and this one none."""
    return "cpu" if trainer.device == "cpu" else device_here()


def _about(population: Population, trainer: TrainerSettings) -> dict[str, Any]:
    """What people are told of who took part, and of what computed it."""
    return {
        "clients": population.clients,
        "partition": population.kind.text,
        "tiers": population.tiers,
        "trainer": trainer.kind,
        "runtime": trainer.programs,
    }
