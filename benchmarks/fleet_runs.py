"""Runs of `edge-fl bench fleet`: the same emulated fleet trains by one method after the other, and is timed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from benchmarks.by_width import SCORED
from benchmarks.clusters import Clusters
from device_sim.emulation.fleet_file import FleetFile, Group
from device_sim.emulation.fleet_session import FleetSession
from device_sim.emulation.mosquitto import Mosquitto
from edge_fl.core.bundle import Bundle
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.training.evaluator import open_evaluator
from exporter.measure.cases import BATCH

__all__ = [
    "AGENTS",
    "STARVED_MB",
    "TIERS",
    "Attempt",
    "FleetRun",
    "FleetSetting",
    "Running",
    "attempts",
    "running",
]

TIERS = {"raspberry-pi-5": 2, "jetson-orin-nano": 3, "phone-mid": 5, "raspberry-pi-4": 5, "phone-low": 5}
"""The fleet: how many devices of each hardware, the fastest first. More of the fast would be more than two cores."""

AGENTS = sum(TIERS.values())
"""How many take part in every round."""

STARVED_MB = 60
"""Memory of one more device, which does not suffice for its data."""

_DATASET = "fashion-mnist"
_QUORUM = 0.2  # of the devices: whoever is late is left behind


@dataclass(frozen=True)
class FleetSetting:
    """What the benchmark was asked for.

    The devices train ``rounds`` rounds of ``local_steps``, for each of which they have ``deadline`` seconds of this
    machine's; ``scale`` is :class:`device_sim.emulation.fleet_file.FleetFile`'s.
    """

    rounds: int
    local_steps: int
    deadline: float
    scale: float
    lr: float = 0.05
    seed: int = 0

    @property
    def file(self) -> FleetFile:
        """The fleet, and the starved device at its end."""
        groups = [Group(profile=name, count=count) for name, count in TIERS.items()]
        starved = Group(profile=list(TIERS)[-1], memory_mb=STARVED_MB)
        return FleetFile(devices=(*groups, starved), data=_DATASET, scale=self.scale)

    def config(self, attempt: "Attempt") -> RunConfig:
        """The coordinator's settings of a run."""
        return RunConfig(
            run=f"fleet-{attempt.name}",
            method=attempt.method,
            parameters=dict(attempt.parameters),
            rounds=self.rounds,
            clients_per_round=AGENTS,
            local_steps=self.local_steps,
            batch=BATCH,
            lr=self.lr,
            seed=self.seed,
            deadline=self.deadline,
            quorum=_QUORUM,
            tiers="auto",
        )


@dataclass(frozen=True)
class Attempt:
    """One run: a method, and the widths (thousandths) that its model is scored at."""

    method: str
    parameters: Mapping[str, Any]
    scored: Sequence[int] = SCORED

    @property
    def name(self) -> str:
        """Tells it from the others."""
        return self.method if len(self.scored) > 1 else f"{self.method}-{self.scored[0]}"

    @property
    def tiers(self) -> int:
        """How many the method tells apart."""
        return open_recipe(self.method, dict(self.parameters)).method.tiers


@dataclass(frozen=True)
class FleetRun:
    """What came of an attempt.

    ``accuracy`` (a fraction) is by width in thousandths, ``step_seconds`` what each device had measured of a step in
    each tier before the first round.
    """

    attempt: Attempt
    rounds: Sequence[RoundMetrics]
    accuracy: Mapping[int, float]
    step_seconds: Mapping[str, Sequence[float | None]]


def attempts(rounds: int) -> list[Attempt]:
    """FjORD, HeteroFL, eFD (a model for each width), FedAvg and FedBIAD, each tier with the share it can run."""
    clusters = Clusters(len(TIERS))
    boundary = {"stage_boundary": rounds - rounds // 10}
    return [
        Attempt("fjord", clusters.parameters("fjord")),
        Attempt("heterofl", clusters.parameters("heterofl")),
        *(Attempt("efd", {**clusters.parameters("efd"), "width": width}, (width,)) for width in SCORED),
        Attempt("fedavg", {}),
        Attempt("fedbiad", {**clusters.parameters("fedbiad"), **boundary}),
    ]


@dataclass
class Running:
    """A fleet that runs, and what its coordinator needs."""

    setting: FleetSetting
    bundle: Bundle
    session: FleetSession
    report: Callable[[str], None]

    def train(self, attempt: Attempt) -> FleetRun:
        """Make a run; raises RunError when it cannot be finished."""
        config = self.setting.config(attempt)
        outcome = self.session.train(self.bundle, config, partial(_tell, self.report, attempt.name))
        weights = load_file(outcome.summary.weights)
        evaluator = open_evaluator(self.bundle, config)
        found = {width: evaluator.score(weights, width) for width in attempt.scored}
        return FleetRun(
            attempt=attempt,
            rounds=outcome.summary.rounds,
            accuracy={width: score.first for width, score in found.items() if score is not None},
            step_seconds=outcome.step_seconds,
        )


@contextmanager
def running(setting: FleetSetting, bundle: Bundle, root: Path, report: Callable[[str], None]) -> Iterator[Running]:
    """The fleet on a broker of its own, for one run after the other.

    Raises
    ------
    ConfigError
        When this machine has not the processors for it.
    BrokerError
        When Mosquitto is not installed.
    """
    with Mosquitto(root) as broker, FleetSession(setting.file, address=broker.address, root=root) as session:
        yield Running(setting, bundle, session, report)


def _tell(report: Callable[[str], None], name: str, metrics: RoundMetrics) -> None:
    report(
        f"{name}: round {metrics.round}, {metrics.first or 0:.1%} after {metrics.seconds:.1f} s, "
        f"{len(metrics.uplink)} of {len(metrics.tiers)} in time"
    )
