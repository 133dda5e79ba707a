"""Rounds of simulation by the workers of each engine, on one machine, with sums of floats and with exact ones."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.times import Times, ratio
from broker.observer import Observer
from device_sim.simulation.settings import Population, RayCluster, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from edge_fl.runs.config import RunConfig
from exporter.export import export_bundle
from exporter.measure.cases import BATCH, find_case

__all__ = ["EnginesSetting", "bench_engines"]

_MODELS = ("fashion-mnist-mlp", "femnist-cnn")
_LR, _SEED = 0.05, 0
_OF_PROCESSES = 1.15
_BARS = Bars("Wall time of a round as a share of that by processes", ("model", "sums", "engine"), ("/ processes",))


@dataclass(frozen=True)
class EnginesSetting:
    """``clients`` a round, out of ``population``, take ``steps`` steps each, in ``rounds`` turns after one that is not
    counted; every engine has as many ``workers``.
    """

    population: int
    clients: int
    steps: int
    rounds: int
    workers: int

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        return (
            f"edge-fl bench engines --population {self.population} --clients {self.clients} --steps {self.steps} "
            f"--rounds {self.rounds} --workers {self.workers}"
        )


def bench_engines(setting: EnginesSetting, report: Callable[[str], None]) -> Result:
    """Take turns, a round each, between processes and Ray's actors.

    Parameters
    ----------
    report
        Told of what is being done.

    Raises
    ------
    DataError
        When a data set cannot be had.
    RuntimeMissingError
        When Ray is not installed.
    """
    rows: list[Row] = []
    with TemporaryDirectory() as scratch:
        for name in _MODELS:
            report(f"{name}: exporting")
            case = find_case(name)
            target = replace(case.target("onnx"), runtimes=("onnx", "torch_eager"))
            bundle = export_bundle(case.build(), target, Path(scratch) / name)
            for exact in (False, True):
                report(f"{name}, {_sums(exact)}: {setting.rounds} rounds")
                rows += _turns(bundle, setting, Path(scratch) / f"{name}-{exact}", exact=exact)
    return Result(
        title="Engines of a simulation",
        command=setting.command,
        about=f"A round of {setting.clients} clients out of {setting.population}, {setting.steps} steps of a batch of "
        f"{BATCH} each. FedBIAD drops half the units. The stacked trainer trains, in {setting.workers} workers of one "
        "thread: processes, or Ray's actors in a cluster on this machine. Exact sums are made by the workers, others "
        "by the process that coordinates. Seconds are wall time, the median over the turns of one run. In each turn "
        "either engine makes one round. The first is not counted: trainers are opened in it. A ratio is the median "
        "over the turns. CPU here is that of the process that coordinates, with Ray's threads in it. The machine was "
        "shared with other work: only ratios mean anything. Goals are the project's own.",
        rows=rows,
        bars=_BARS,
    )


def _turns(bundle: Bundle, setting: EnginesSetting, root: Path, *, exact: bool) -> list[Row]:
    """What the table says of each engine."""
    engines = {
        "processes": TrainerSettings("stacked", processes=setting.workers),
        "Ray": TrainerSettings("stacked", ray=RayCluster(workers=setting.workers)),
    }
    simulations: dict[str, Simulation] = {}
    times = {name: Times() for name in engines}
    try:
        for name, trainer in engines.items():
            simulations[name] = _simulation(bundle, setting, trainer, root / name, exact=exact)
        for number in range(1, setting.rounds + 2):
            for name in engines if number % 2 else reversed(engines):
                times[name].measure(partial(simulations[name].train_round, number))
    finally:
        for simulation in simulations.values():
            simulation.close()
    return [
        {
            "model": bundle.manifest.name,
            "sums": _sums(exact),
            "engine": f"{name}, {setting.workers} workers",
            "wall (s)": median(each.wall[1:]),
            "/ processes": (share := ratio(each.wall, times["processes"].wall)),
            "CPU here (s)": median(each.cpu[1:]),
            "goals": ""
            if name == "processes"
            else f"/ processes ≤ {_OF_PROCESSES:g}: {'yes' if share <= _OF_PROCESSES else 'no'}",
        }
        for name, each in times.items()
    ]


def _sums(exact: bool) -> str:
    return "exact" if exact else "of floats"


def _simulation(
    bundle: Bundle, setting: EnginesSetting, trainer: TrainerSettings, root: Path, *, exact: bool
) -> Simulation:
    config = RunConfig(
        run="bench",
        method="fedbiad",
        parameters={"dropout": [500]},
        rounds=setting.rounds,
        clients_per_round=setting.clients,
        local_steps=setting.steps,
        batch=BATCH,
        lr=_LR,
        seed=_SEED,
        exact_sums=exact,
    )
    return Simulation(
        bundle=bundle,
        config=config,
        population=Population(setting.population),
        trainer=trainer,
        root=root,
        observer=Observer(),
    )
