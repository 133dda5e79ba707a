"""What a device computes in a round, timed: batches, patterns, steps, compression and frame, in the agent's runtime."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_run
from functools import partial

from msgspec.structs import replace

from broker.model import GlobalModel
from broker.tasks import make_task
from device_sim.simulation.settings import Population, World
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import ref_of
from edge_fl.data.partition import partition
from edge_fl.data.registry import Samples
from edge_fl.data.splits import train_samples
from edge_fl.measure.timing import medians
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.runtimes.base import open_runtime
from edge_fl.training.features import with_features
from edge_fl.training.update import make_update
from edge_fl.wire.frame import decode_frame

__all__ = ["Local", "a_step", "measured", "step_seconds"]


@dataclass(frozen=True)
class Local:
    """Whose local training is timed: a run's, as a simulation has it, in ``runtime`` on one thread.

    ``longest`` is the most steps that are timed of a local round; of a longer one, the rest is taken to last as long as
    the second half of these. ``data`` is as :func:`edge_fl.data.splits.train_samples` takes it.
    """

    bundle: Bundle
    config: RunConfig
    population: Population
    runtime: str = "onnx"
    longest: int = 60
    data: str | Samples | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many steps are timed: all of a round, or ``longest`` and half of them."""
        steps = self.config.local_steps
        return (steps,) if steps <= self.longest else (self.longest, self.longest // 2)

    def work(self, tier: int, steps: int) -> Callable[[], object]:
        """A first round of so many ``steps``, as a client of ``tier`` makes it.

        Raises RuntimeMissingError when the bundle holds no program for it, and DataError when there is no data.
        """
        layout, client = self.bundle.layout, f"client-{tier}"
        runtime = open_runtime(self.runtime, self.bundle, threads=1)
        samples = train_samples(self.data, self.bundle)
        part = partition(samples, self.population.clients, self.population.kind)[tier]
        recipe = open_recipe(self.config.method, self.config.parameters)
        weights = self.bundle.weights()
        content = GlobalModel(layout, weights, recipe=recipe, run=self.config.run).frame()
        task = make_task(
            replace(self.config, local_steps=steps),
            recipe,
            layout,
            client=client,
            tier=tier,
            round=1,
            accepted=0,
            model=ref_of(content),
            weights=weights,
        )
        return partial(
            make_update,
            task,
            client=client,
            model=decode_frame(content, layout),
            runtime=runtime,
            samples=with_features(samples.take(part), runtime),
            state={},
        )


def step_seconds(runs: Sequence[Local], *, repeats: int = 5) -> list[list[float]]:
    """CPU seconds of one local step of each run, by tier.

    One client of each tier makes the first round, all of them and all runs in turn; the median is divided by its
    steps, so that a step has its share of what a method does besides.
    """
    tiers = [range(min(run.population.tiers, run.population.clients)) for run in runs]
    work = {
        (n, tier, steps): run.work(tier, steps)
        for n, run in enumerate(runs)
        for tier in tiers[n]
        for steps in run.lengths
    }
    took = medians(work, repeats=repeats, clock=time.process_time)
    return [
        [
            a_step({steps: took[n, tier, steps] for steps in run.lengths}, run.config.local_steps)
            for tier in tiers[n]
        ]
        for n, run in enumerate(runs)
    ]


def a_step(took: Mapping[int, float], steps: int) -> float:
    """Seconds of one of so many ``steps``: of a round that ``took`` has by its length, or that lasts longer than two
    by as much as the longer of these does.
    """
    shorter, longest = min(took), max(took)
    beyond = steps - longest
    more = beyond * (took[longest] - took[shorter]) / (longest - shorter) if beyond else 0.0
    return (took[longest] + more) / steps


def measured(world: World, run: Local) -> World:
    """``world`` with the seconds of a step as they are here, by the tier that is trained, where it has none."""
    if world.steps:
        return world
    tiers = run.population.tiers
    if run.config.tiers == "auto":
        tiers = open_recipe(run.config.method, run.config.parameters).method.tiers
    (steps,) = step_seconds([replace_run(run, population=replace(run.population, tiers=tiers, mix=()))])
    return replace(world, steps=tuple(steps))
