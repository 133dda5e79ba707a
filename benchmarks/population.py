"""Simulations of ever more clients, of which as many train in a round: time and memory of the process."""

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import nn

from broker.observer import Observer
from device_sim.simulation.api import begin
from device_sim.simulation.settings import World
from edge_fl.core.bundle import Bundle
from edge_fl.core.inputs import Input
from edge_fl.data.registry import load_dataset
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from edge_fl.runs.metrics import RoundMetrics
from exporter.export import Target, export_bundle

__all__ = ["PopulationSetting", "bench_population"]

_SAMPLES = 10  # of a client
_STEPS, _BATCH, _CLASSES = 5, 10, 62
_WORLD = World("4g", steps=(0.01,), online=0.3, stay=600.0, failures=0.05)
_MOST_MEGABYTES, _MOST_GROWTH = 4000, 1.05
_BARS = Bars("Memory of a simulation after its last round (MB)", ("clients",), ("own memory (MB)",))


@dataclass(frozen=True)
class PopulationSetting:
    """Of each of these ``populations``, ``clients`` train in each of ``rounds``, in ``processes``."""

    populations: tuple[int, ...]
    clients: int
    rounds: int
    processes: int

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        each = " ".join(f"--population {population}" for population in self.populations)
        return (
            f"edge-fl bench population {each} --clients {self.clients} --rounds {self.rounds} "
            f"--processes {self.processes}"
        )


def bench_population(setting: PopulationSetting, report: Callable[[str], None]) -> Result:
    """Simulate each population in a process that does nothing else.

    Parameters
    ----------
    report
        Told of what is being done.

    Raises
    ------
    DataError
        When FEMNIST cannot be had.
    """
    rows: list[Row] = []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        report("exporting")
        _export(folder / "bundle")
        report(f"drawing {_SAMPLES * max(setting.populations):,} images")
        _draw(folder, max(setting.populations))
        for population in setting.populations:
            report(f"{population:,} clients: {setting.rounds} rounds")
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
                rows.append(alone.submit(_simulated, folder, setting, population).result())
    return Result(
        title="Simulations of many clients",
        command=setting.command,
        about=f"{setting.clients:,} clients a round, whatever the population. Each has {_SAMPLES} images, drawn from "
        f"FEMNIST's, in a file that is mapped into memory. A client takes {_STEPS} steps of a batch of {_BATCH} in "
        f"onnxruntime, of a CNN of {_weights():,} weights. DGC compresses updates, so each client that has trained "
        "keeps a memory as large as the model, in the run's record on disk. Clients have the links of 4G phones, are "
        "there for 30 % of the time, and fail in 5 % of tasks; virtual time passes. Seconds are wall time, with "
        f"{setting.processes} processes that train. Own memory is what the simulating process alone has and cannot "
        "give back. The mapped images are beside it: the system may drop them at any time. The processes that train "
        "are not in it: they do not grow with the population.",
        rows=rows,
        bars=_BARS,
    )


def _net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, _CLASSES),
    )


def _weights() -> int:
    return sum(parameter.numel() for parameter in _net().parameters())


def _export(root: Path) -> None:
    torch.manual_seed(0)
    export_bundle(_net(), Target("population-cnn", "", Input((1, 28, 28), "float32"), _CLASSES, ("onnx",)), root)


def _draw(folder: Path, population: int) -> None:
    """As many images as the largest population needs, drawn with replacement."""
    source, count, rng = load_dataset("femnist").train, _SAMPLES * population, np.random.default_rng(0)
    x = open_memmap(folder / "x.npy", "w+", np.float32, (count, 1, 28, 28))
    y = open_memmap(folder / "y.npy", "w+", np.int64, (count,))
    for start in range(0, count, 50_000):
        drawn = rng.integers(0, len(source.y), len(y[start : start + 50_000]))
        x[start : start + 50_000], y[start : start + 50_000] = source.x[drawn], source.y[drawn]
    x.flush()
    y.flush()


class _Watch(Observer):
    """Seconds and memory at the end of each round."""

    def __init__(self) -> None:
        self.seconds, self.own, self.mapped = list[float](), list[float](), list[float]()
        self._began = time.perf_counter()

    def round_closed(self, metrics: RoundMetrics) -> None:
        del metrics
        now = time.perf_counter()
        self.seconds.append(now - self._began)
        self._began = now
        own, whole = (_kilobytes(name) / 1000 for name in ("Anonymous", "Pss"))
        self.own.append(own)
        self.mapped.append(whole - own)


def _kilobytes(name: str) -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise ValueError(name)


def _simulated(folder: Path, setting: PopulationSetting, population: int) -> Row:
    """One simulation, in a process of its own."""
    count = _SAMPLES * population
    data = np.load(folder / "x.npy", mmap_mode="r")[:count], np.load(folder / "y.npy", mmap_mode="r")[:count]
    watch, began = _Watch(), time.perf_counter()
    simulation = begin(
        Bundle.load(folder / "bundle"),
        data,
        method="fedavg+dgc",
        clients=population,
        fraction=setting.clients / population,
        rounds=setting.rounds,
        local_steps=_STEPS,
        batch=_BATCH,
        processes=setting.processes,
        world=_WORLD,
        output=folder / f"run-{population}",
        observer=watch,
    )
    opened = time.perf_counter() - began
    simulation.run()
    second, last = watch.own[min(1, len(watch.own) - 1)], watch.own[-1]
    most = max(watch.own)
    return {
        "clients": f"{population:,}",
        "opened in (s)": opened,
        "round 1 (s)": watch.seconds[0] - opened,
        "later rounds (s)": median(watch.seconds[1:] or watch.seconds),
        "own memory, round 2 (MB)": second,
        "own memory (MB)": last,
        "mapped (MB)": watch.mapped[-1],
        "last / round 2": last / second,
        "goals": f"own memory ≤ {_MOST_MEGABYTES} MB: {'yes' if most <= _MOST_MEGABYTES else 'no'}; "
        f"last / round 2 ≤ {_MOST_GROWTH:g}: {'yes' if last <= _MOST_GROWTH * second else 'no'}",
    }
