"""Rounds of simulation against a plain sequential torch loop over the same clients, batches and steps."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.peers.flower import check_flower, simulate_in_flower
from benchmarks.peers.pfl_research import check_pfl, simulate_in_pfl
from benchmarks.peers.work import FedAvgWork, PeerRounds
from benchmarks.perceptron_products import layers_of, seconds_on_all_cores
from benchmarks.times import Times, ratio
from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.core.selection import Selection
from edge_fl.data.batcher import batches
from edge_fl.data.partition import IID, partition
from edge_fl.data.registry import Samples, load_dataset
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from edge_fl.runs.config import RunConfig
from exporter.export import export_bundle
from exporter.measure.cases import BATCH, Case, find_case
from exporter.measure.eager import sized

__all__ = ["Peers", "SimulatorSetting", "bench_simulator"]

_BARS = Bars(
    "Wall time of a round as a share of a torch loop's", ("model", "method", "trainer"), ("/ loop (wall)",)
)

_LOOP, _LR, _SEED = "sequential torch loop", 0.05, 0
_DROPPED = 500  # of a thousand units, by FedBIAD
_SAMPLES = 3 * BATCH  # of a client: the loop need not pad batches, so clients of fewer would compare unequal work
_WORK = (
    ("fashion-mnist-mlp", "fedavg", 0.8),
    ("fashion-mnist-mlp", "fedbiad", 0.45),
    ("femnist-cnn", "fedavg", 1.0),
)
"""Models, methods (dropping half), and how much of the loop's time the stacked trainer may take."""
_COLUMNS = ("model", "method", "trainer", "seconds a round", "wall (s)", "/ loop", "/ loop (wall)")
_BLANK: Row = dict.fromkeys((*_COLUMNS, "growth (MB)", "weights - loop's", "goals"), "")
_OF_FLOWER, _FEDBIAD_OF_FLOWER, _OF_PFL = 0.2, 0.12, 0.8
_PEERS = (
    "Peers simulate their own FedAvg for the perceptron, where what is around the training weighs most. They have the "
    "same clients, data, model and steps, but draw clients and batches themselves. Flower runs on Ray, as it does by "
    "default: a client in a process for each core, with a torch loop of one thread. Its server asks for answers every "
    "tenth of a second. pfl-research has a process for each core, too, joined by torch.distributed. The stacked "
    "trainer has as many processes of one thread. Half of its rounds come before the peers', half after. The first of "
    "each is not counted. Products alone are the matrix products of all steps, in torch, in as many processes, on "
    "tensors made before: a floor of the wall time. "
)


@dataclass(frozen=True)
class SimulatorSetting:
    """``clients`` a round, out of ``population``, take ``steps`` steps each, on ``threads`` threads, in ``rounds``
    turns after one that is not counted.
    """

    population: int
    clients: int
    steps: int
    rounds: int
    threads: int

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        return (
            f"edge-fl bench simulator --population {self.population} --clients {self.clients} --steps {self.steps} "
            f"--rounds {self.rounds} --threads {self.threads}"
        )


@dataclass(frozen=True)
class Peers:
    """The Pythons of environments with ``flower`` and ``pfl``; None to leave one out."""

    flower: Path | None = None
    pfl: Path | None = None

    @property
    def options(self) -> str:
        """The options of a command line that names them."""
        named = (("--flower-python", self.flower), ("--pfl-python", self.pfl))
        return "".join(f" {option} PYTHON" for option, python in named if python is not None)

    def check(self) -> None:
        """Raise RuntimeMissingError where one cannot be run."""
        if self.flower is not None:
            check_flower(self.flower)
        if self.pfl is not None:
            check_pfl(self.pfl)

    def simulate(self, work: FedAvgWork) -> dict[str, PeerRounds]:
        """The rounds of each, by its name."""
        found = {}
        if self.flower is not None:
            found["Flower"] = simulate_in_flower(work, self.flower)
        if self.pfl is not None:
            found["pfl-research"] = simulate_in_pfl(work, self.pfl)
        return found


def bench_simulator(
    setting: SimulatorSetting, report: Callable[[str], None], peers: Peers | None = None
) -> Result:
    """Take turns, a round each, between the loop and both trainers.

    Parameters
    ----------
    report
        Told of what is being done.
    peers
        Frameworks whose simulations make the first model's rounds as well, and beside them the stacked trainer, all on
        all cores; None to leave them out.

    Raises
    ------
    DataError
        When a data set cannot be had, or has too few samples for the population.
    RuntimeMissingError
        When a peer cannot be run.
    """
    rows: list[Row] = []
    peers = peers or Peers()
    peers.check()
    with TemporaryDirectory() as scratch:
        for number, (name, method, limit) in enumerate(_WORK):
            report(f"{name}, {method}: exporting")
            case = find_case(name)
            target = replace(case.target("onnx"), runtimes=("onnx", "torch_eager"))
            bundle = export_bundle(case.build(), target, Path(scratch) / f"bundle-{number}")
            report(f"{name}, {method}: {setting.rounds} rounds")
            fitting = len(load_dataset(case.dataset).train.y) // _SAMPLES
            own = replace(setting, population=max(min(setting.population, fitting), setting.clients))
            turns = _Turns(bundle, case, method, own, Path(scratch) / f"runs-{number}")
            for turn in range(setting.rounds + 1):
                turns.take(turn + 1)
            rows += turns.rows(limit)
            if peers.options and number == 0:
                report(f"{name}: {setting.rounds} rounds beside peers")
                rows += turns.beside(peers)
    return Result(
        title="Simulator",
        command=setting.command + peers.options,
        about=f"A round of {setting.clients} clients out of {setting.population} (or as many as have {_SAMPLES} "
        f"samples), {setting.steps} steps of a batch of {BATCH} each: patterns, training, frames, checks and"
        " aggregation, without evaluation and files. FedBIAD drops half the units. The sequential loop is "
        "an ordinary nn.Module at full width with autograd and torch.optim.SGD. It trains the same "
        "clients on the same batches (without padding) and takes the mean of their weights. It encodes and "
        "checks nothing. Seconds are CPU time, the median over the turns of one run, in each of which every"
        " alternative makes one round; a ratio is the median over the turns. The machine was shared with "
        "other work: only ratios mean anything. Growth is that of resident memory over the counted turns, "
        f"but the first. {_PEERS if peers.options else ''}Goals are the project's own.",
        rows=rows,
        bars=_BARS,
    )


class _Turns:
    """The alternatives for one model and method, and what each turn took; the first turn is not counted."""

    def __init__(self, bundle: Bundle, case: Case, method: str, setting: SimulatorSetting, root: Path) -> None:
        self._bundle, self._root = bundle, root
        self._case, self._method, self._setting = case, method, setting
        self._simulations = {
            "stacked": self._simulation("stacked", TrainerSettings("stacked", threads=setting.threads), method),
            "runtime (onnx)": self._simulation(
                "runtime", TrainerSettings("runtime", threads=setting.threads), method
            ),
        }
        torch.set_num_threads(setting.threads)
        self._loop = _Loop(bundle, case, setting)
        self._times = {name: Times() for name in (_LOOP, *self._simulations)}
        self._difference = 0.0

    def take(self, number: int) -> None:
        """One round of every alternative."""
        clients: Iterable[str] = ()
        for name, simulation in self._simulations.items():
            clients = self._times[name].measure(partial(simulation.train_round, number)).uplink
        self._times[_LOOP].measure(partial(self._loop.round, number, sorted(clients)))
        if number == 1:
            weights = self._simulations["stacked"].weights
            self._difference = max(float(np.abs(weights[n] - w).max()) for n, w in self._loop.weights.items())

    def rows(self, limit: float) -> list[Row]:
        """What the table says of each alternative."""
        loop = self._times[_LOOP]
        return [
            {
                "model": self._case.name,
                "method": self._method if name != _LOOP else "fedavg",
                "trainer": name,
                "seconds a round": median(times.cpu[1:]),
                "wall (s)": median(times.wall[1:]),
                "/ loop": (cpu := ratio(times.cpu, loop.cpu)),
                "/ loop (wall)": ratio(times.wall, loop.wall),
                "growth (MB)": max(sum(times.memory[2:]), 0) / 1e6,
                "weights - loop's": self._difference if (name, self._method) == ("stacked", "fedavg") else "",
                "goals": f"/ loop ≤ {limit:g}: {'yes' if cpu <= limit else 'no'}" if name == "stacked" else "",
            }
            for name, times in self._times.items()
        ]

    def beside(self, peers: Peers) -> list[Row]:
        """The rounds of peers, and the stacked trainer's of FedAvg and FedBIAD, all on all cores."""
        setting, cores = self._setting, os.cpu_count() or 1
        work = FedAvgWork(
            model=sized(self._case.build(), self._bundle.weights()),
            samples=self._loop.samples,
            parts=self._loop.parts,
            clients=setting.clients,
            steps=setting.steps,
            batch=BATCH,
            lr=_LR,
            rounds=setting.rounds + 1,
            at_once=cores,
        )
        trainer = TrainerSettings("stacked", processes=cores)
        ours = {method: self._simulation(f"cores-{method}", trainer, method) for method in ("fedavg", "fedbiad")}
        times = {method: Times() for method in ours}
        for number in range(1, 2 + setting.rounds):
            if number == 2 + setting.rounds // 2:
                found = peers.simulate(work)
            for method, simulation in ours.items():
                times[method].measure(partial(simulation.train_round, number))
        for simulation in ours.values():
            simulation.close()
        floors = {method: self._products(method, processes=cores) for method in ours}
        theirs = {name: median(rounds.seconds[1:]) for name, rounds in found.items()}
        shared: Row = {**_BLANK, "model": self._case.name}
        rows: list[Row] = [
            {
                **shared,
                "method": "fedavg",
                "trainer": f"{name} {found[name].version}, {cores} processes",
                "wall (s)": seconds,
            }
            for name, seconds in theirs.items()
        ]
        for method, each in times.items():
            mine = median(each.wall[1:])
            trainer_name = f"stacked, {cores} processes"
            goals = _beside(mine, theirs, method)
            rows.append({**shared, "method": method, "trainer": trainer_name, "wall (s)": mine, "goals": goals})
            alone = f"products alone, {cores} processes"
            rows.append({**shared, "method": method, "trainer": alone, "wall (s)": floors[method]})
        return rows

    def _products(self, method: str, *, processes: int) -> float:
        """Wall seconds of the matrix products of a round."""
        kept = Pattern.prefix(self._bundle.layout, 1000 if method == "fedavg" else 1000 - _DROPPED)
        weights = Selection.of(kept, "units").gather(self._bundle.weights())
        return seconds_on_all_cores(
            layers_of(sized(self._case.build(), weights)),
            batch=BATCH,
            steps=self._setting.clients * self._setting.steps,
            rounds=self._setting.rounds,
            processes=processes,
        )

    def _simulation(self, folder: str, trainer: TrainerSettings, method: str) -> Simulation:
        config = RunConfig(
            run="bench",
            method=method,
            parameters={} if method == "fedavg" else {"dropout": [_DROPPED]},
            rounds=self._setting.rounds,
            clients_per_round=self._setting.clients,
            local_steps=self._setting.steps,
            batch=BATCH,
            lr=_LR,
            seed=_SEED,
        )
        return Simulation(
            bundle=self._bundle,
            config=config,
            population=Population(self._setting.population),
            trainer=trainer,
            root=self._root / folder,
            observer=Observer(),
        )


class _Loop:
    """FedAvg as one would write it in torch: one model, which every client in turn is trained in."""

    def __init__(self, bundle: Bundle, case: Case, setting: SimulatorSetting) -> None:
        self.weights: Mapping[str, NDArray[np.float32]] = bundle.weights()
        self._model, self._steps = sized(case.build(), self.weights), setting.steps
        self.samples = load_dataset(bundle.manifest.dataset).train
        self.parts = partition(self.samples, setting.population, IID)

    def round(self, number: int, clients: Sequence[str]) -> None:
        """Train the clients one after another, and take the mean of their weights by samples."""
        sums: dict[str, torch.Tensor] = {}
        start = {name: torch.from_numpy(array) for name, array in self.weights.items()}
        total = 0
        for client in clients:
            samples = self.samples.take(self.parts[int(client.removeprefix("client-"))])
            self._model.load_state_dict(start)
            self._train(samples, Stream.of(seed=_SEED, purpose="batches", client=client, round=number))
            count = len(samples.y)
            total += count
            for name, tensor in self._model.state_dict().items():
                sums[name] = sums.get(name, 0) + count * tensor.double()
        self.weights = {name: (tensor / total).float().numpy() for name, tensor in sums.items()}

    def _train(self, samples: Samples, stream: Stream) -> None:
        optimizer = torch.optim.SGD(self._model.parameters(), lr=_LR)
        for batch in batches(samples, steps=self._steps, size=BATCH, stream=stream):
            real = int(batch.weight.sum())
            x, y = torch.from_numpy(batch.x[:real]), torch.from_numpy(batch.y[:real])
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self._model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss.item()


def _beside(mine: float, theirs: Mapping[str, float], method: str) -> str:
    """The goals, by peer."""
    most = (
        {"Flower": _OF_FLOWER, "pfl-research": _OF_PFL} if method == "fedavg" else {"Flower": _FEDBIAD_OF_FLOWER}
    )
    return "; ".join(
        f"wall / {name}'s ≤ {most[name]:g}: {'yes' if mine <= most[name] * seconds else 'no'} ({mine / seconds:.3g})"
        for name, seconds in theirs.items()
        if name in most
    )
