"""Methods and compressors side by side: accuracy and measured uplink, over several seeds, in simulation."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from edge_fl.core.bundle import Bundle
from edge_fl.data.partition import Kind
from edge_fl.data.registry import dataset_info
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result
from edge_fl.recipes.recipe import open_recipe

__all__ = ["Setting", "bench_methods"]

_BARS = Bars("Accuracy (%) of each recipe at its own defaults", ("recipe",), ("accuracy (%)",))


@dataclass(frozen=True)
class Setting:
    """What every recipe is run with."""

    dataset: str = "fashion-mnist"
    clients: int = 100
    clients_per_round: int = 10
    partition: str = "labels=5"
    rounds: int = 60
    local_steps: int = 20
    batch: int = 20
    lr: float = 0.1
    seeds: tuple[int, ...] = (0, 1, 2)

    def command(self, recipes: Sequence[str]) -> str:
        """The command line that gives the same table."""
        return (
            f"edge-fl bench methods --dataset {self.dataset} --clients {self.clients} "
            f"--clients-per-round {self.clients_per_round} --partition {self.partition} --rounds {self.rounds} "
            f"--local-steps {self.local_steps} --lr {self.lr} --seeds {len(self.seeds)} "
            + " ".join(f"--recipe {recipe}" for recipe in recipes)
        )


def bench_methods(recipes: Sequence[str], setting: Setting, report: Callable[[str], None]) -> Result:
    """Simulate every recipe with every seed; raises as :class:`device_sim.simulation.simulate.Simulation` does.

    Parameters
    ----------
    recipes
        Methods, or methods and compressors joined by ``+``, at their defaults.
    report
        Told of each run.
    """
    rows: list[dict[str, str | float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        variants = {open_recipe(recipe, {}).method.variant for recipe in recipes}
        bundle = _export(setting.dataset, ("plain", *sorted(variants - {"plain"})), Path(scratch) / "bundle")
        for recipe in recipes:
            runs = []
            for seed in setting.seeds:
                report(f"{recipe}, seed {seed}")
                runs.append(_run(bundle, recipe, setting, seed, Path(scratch) / f"{recipe}-{seed}"))
            rows.append(_row(recipe, runs))
    return Result(
        title="Methods side by side",
        command=setting.command(recipes),
        about=f"{setting.dataset}, the perceptron of the model zoo, {setting.clients} clients ({setting.partition}), "
        f"{setting.clients_per_round} a round, {setting.rounds} rounds of {setting.local_steps} steps of batch "
        f"{setting.batch}, step size {setting.lr}, {len(setting.seeds)} seeds. Every recipe is at its own defaults and "
        "nothing is tuned for any, so this is a check that each works, not a ranking; there is one tier, at which "
        "fjord uploads, and heterofl trains, the full width. Accuracy is the mean of the last five rounds, which "
        "non-IID rounds need; uplink is the mean encoded frame of one client and round.",
        rows=rows,
        bars=_BARS,
    )


@dataclass(frozen=True)
class _Outcome:
    accuracy: float
    uplink: float
    dense: int
    seconds: float


def _run(bundle: Bundle, recipe: str, setting: Setting, seed: int, root: Path) -> _Outcome:
    from broker.observer import Observer
    from device_sim.simulation.settings import Population, TrainerSettings
    from device_sim.simulation.simulate import Simulation
    from edge_fl.runs.config import RunConfig

    config = RunConfig(
        run=f"bench-{seed}",
        method=recipe,
        parameters={},
        rounds=setting.rounds,
        clients_per_round=setting.clients_per_round,
        local_steps=setting.local_steps,
        batch=setting.batch,
        lr=setting.lr,
        seed=seed,
    )
    population = Population(setting.clients, kind=Kind.parse(setting.partition))
    summary = Simulation(
        bundle=bundle,
        config=config,
        population=population,
        trainer=TrainerSettings("runtime"),
        root=root,
        observer=Observer(),
    ).run()
    return _Outcome(
        accuracy=mean(metrics.first for metrics in summary.rounds[-5:] if metrics.first is not None),
        uplink=summary.uplink,
        dense=summary.dense,
        seconds=mean(metrics.seconds for metrics in summary.rounds),
    )


def _row(recipe: str, runs: Sequence[_Outcome]) -> dict[str, str | float]:
    accuracies = [100 * run.accuracy for run in runs]
    spread = stdev(accuracies) if len(accuracies) > 1 else 0.0
    uplink = mean(run.uplink for run in runs)
    return {
        "recipe": recipe,
        "accuracy (%)": f"{mean(accuracies):.2f} ± {spread:.2f}",
        "uplink (bytes)": f"{uplink:,.0f}",
        "dense / uplink": runs[0].dense / uplink,
        "seconds a round": mean(run.seconds for run in runs),
    }


def _export(dataset: str, variants: tuple[str, ...], root: Path) -> Bundle:
    import torch

    from exporter.export import Target, export_bundle
    from exporter.zoo import build

    info = dataset_info(dataset)
    torch.manual_seed(0)
    target = Target.of(info, dataset, ("onnx",), variants=variants)
    return export_bundle(build(f"{dataset}-mlp"), target, root)
