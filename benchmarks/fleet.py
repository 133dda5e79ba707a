"""Methods for devices of different means, on the same emulated fleet: accuracy by width, time, bytes and energy."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import mean, median, quantiles
from tempfile import TemporaryDirectory

from benchmarks.by_width import SCORED
from benchmarks.fleet_clock import VirtualFleet, virtual_fleets
from benchmarks.fleet_runs import (
    AGENTS,
    STARVED_MB,
    TIERS,
    FleetRun,
    FleetSetting,
    attempts,
    running,
)
from benchmarks.plots import panels
from device_sim.emulation.fleet_file import Device
from edge_fl.core.bundle import Optimizer
from edge_fl.measure.table import Picture, Result, Row
from exporter.measure.cases import find_case
from exporter.measure.exported import exported

__all__ = ["bench_fleet"]

_MODEL, _CLIP = "fashion-mnist-mlp", 1.0


@dataclass(frozen=True)
class _Line:
    """A method: its run, or a run for each width, and the virtual clock of each."""

    method: str
    runs: Sequence[FleetRun]
    clocks: Sequence[VirtualFleet]

    @property
    def accuracy(self) -> dict[int, float]:
        """In percent by width."""
        return {width: 100 * accuracy for run in self.runs for width, accuracy in run.accuracy.items()}

    @property
    def wall(self) -> list[float]:
        """Seconds of each round, from the tasks to the last update or the deadline."""
        return [max(metrics.took.values()) for run in self.runs for metrics in run.rounds]

    @property
    def virtual(self) -> list[float]:
        """The same by the clock."""
        timed = zip(self.runs, self.clocks, strict=True)
        return [clock.round(metrics) for run, clock in timed for metrics in run.rounds]

    def in_time(self) -> list[float]:
        """Wall over virtual seconds of every device's part in a round that was in time."""
        return [
            metrics.took[client] / sum(clock.client(client, metrics.tiers[client]))
            for run, clock in zip(self.runs, self.clocks, strict=True)
            for metrics in run.rounds
            for client in metrics.uplink
        ]

    def row(self) -> Row:
        rounds = [metrics for run in self.runs for metrics in run.rounds]
        joules = [
            clock.joules(metrics)
            for run, clock in zip(self.runs, self.clocks, strict=True)
            for metrics in run.rounds
        ]
        return {
            "method": self.method,
            "models": len(self.runs),
            **{f"{width / 1000:g}": f"{self.accuracy[width]:.1f}" for width in SCORED},
            "round (s)": mean(self.wall),
            "virtual (s)": mean(self.virtual),
            "wall / virtual": mean(self.wall) / mean(self.virtual),
            "late a round": mean(AGENTS - len(metrics.uplink) for metrics in rounds),
            "up a round (MB)": mean(sum(metrics.uplink.values()) for metrics in rounds) / 1e6,
            "down a round (MB)": mean(sum(metrics.downlink.values()) for metrics in rounds) / 1e6,
            "energy a round (J)": mean(joules),
        }


def bench_fleet(setting: FleetSetting, cache: Path, report: Callable[[str], None]) -> Result:
    """Train by each method in turn on one fleet.

    Raises
    ------
    ConfigError
        When this machine has not the processors for the fleet.
    BrokerError
        When Mosquitto is not installed.
    RunError
        When a run cannot be finished.
    """
    bundle = exported(find_case(_MODEL), ("onnx",), cache, report, optimizer=Optimizer(clip=_CLIP))
    planned = attempts(setting.rounds)
    clocks = virtual_fleets(setting, planned, bundle, report)
    began = time.monotonic()
    with TemporaryDirectory() as scratch, running(setting, bundle, Path(scratch), report) as fleet:
        runs = [fleet.train(attempt) for attempt in planned]
        devices, problems = fleet.session.fleet.devices, fleet.session.fleet.problems()
    minutes = (time.monotonic() - began) / 60
    methods = dict.fromkeys(run.attempt.method for run in runs)
    lines = [_line(method, [run for run in runs if run.attempt.method == method], clocks) for method in methods]
    return Result(
        title="An emulated fleet",
        command=f"edge-fl bench fleet --rounds {setting.rounds} --local-steps {setting.local_steps} "
        f"--deadline {setting.deadline:g} --scale {setting.scale:g} --seed {setting.seed}",
        about=_about(setting, minutes),
        rows=[line.row() for line in lines],
        notes=[
            *_tier_notes(devices, runs),
            _clock_note(lines),
            *(f"Memory: {sentence}" for sentence in problems.values()),
        ],
        pictures=[Picture("methods", "Accuracy by width and by time", partial(_draw, lines))],
    )


def _line(method: str, runs: Sequence[FleetRun], clocks: Mapping[str, VirtualFleet]) -> _Line:
    return _Line(method, runs, [clocks[run.attempt.name] for run in runs])


def _about(setting: FleetSetting, minutes: float) -> str:
    fleet = ", ".join(f"{count} {name}" for name, count in TIERS.items())
    return (
        f"{AGENTS} agents, each a process on emulated hardware ({fleet}; `device_sim/emulation/profiles.py`), train "
        f"the Fashion-MNIST perceptron over Mosquitto, {setting.rounds} rounds of {setting.local_steps} steps of 20 "
        f"samples at step size {setting.lr:g}, gradients clipped at a norm of {_CLIP:g} (without, FedBIAD's devices at "
        "p = 0.8, which scale two layers by 5, may diverge from a model that others trained whole; all methods learn "
        "less in ten rounds with it); one more has "
        f"{STARVED_MB} MB of memory. Everything takes {setting.scale:g} times as long as on the devices. Tiers come "
        "out of their own measurements (`serve --tiers auto`), which begin without any of the link: it is learned from "
        "the first rounds. Whoever needs more than "
        f"{setting.deadline:g} s is late, and left behind: so FedAvg, which has no tiers, drops its stragglers. The "
        "columns 0.2 to 1 are the accuracy (%) of the first units of the last model; `efd` trains a model for each "
        "width, and its other columns are the mean of the five. A round is from the tasks to the last update, or the "
        "deadline. The virtual clock (`device_sim/simulation/time_model.py`) knows the tiers that devices "
        "were asked in, and nothing that the fleet timed: processor time of a round's steps on this machine before "
        "the fleet was started, the profiles, and the bytes of a simulated round. Bytes are of encoded frames, energy "
        "is the profiles' watts over the virtual seconds of training and transfers. The budget is twelve minutes for "
        "the nine runs; these "
        f"took {minutes:.1f}."
    )


def _tier_notes(devices: Sequence[Device], runs: Sequence[FleetRun]) -> list[str]:
    """What the devices measured of a step of the full model, against their profiles."""
    measured = {
        profile: median(
            seconds
            for device in devices
            if device.group.profile == profile
            for seconds in _full_steps(device.client, runs)
        )
        for profile in TIERS
    }
    slowdowns = {device.group.profile: device.profile.slowdown for device in devices}
    first = next(iter(TIERS))
    notes = []
    for profile, seconds in measured.items():
        ratio, expected = seconds / measured[first], slowdowns[profile] / slowdowns[first]
        notes.append(
            f"{profile}: a step of the full model took {1000 * seconds:.1f} ms by the devices' own measurements, "
            f"{ratio:.2f} times the {first}'s; by the profiles it is {expected:.2f} times "
            f"({ratio / expected - 1:+.1%})."
        )
    return notes


def _clock_note(lines: Sequence[_Line]) -> str:
    """How well the clock tells the rounds of single devices, which the deadline hides."""
    ratios = [ratio for line in lines for ratio in line.in_time()]
    cuts = quantiles(ratios, n=20)
    return (
        f"Of single devices that were in time (before the deadline cuts a round off), {len(ratios)} rounds took "
        f"{median(ratios):.3f} times the virtual clock's seconds in the median, and nine in ten of them "
        f"{cuts[0]:.2f} to {cuts[-1]:.2f} times."
    )


def _full_steps(client: str, runs: Sequence[FleetRun]) -> list[float]:
    """A device's measurements of steps that train all units: FedAvg's and the ablest tier's of eFD's full model."""
    full = [run for run in runs if run.attempt.name in ("fedavg", "efd")]
    full += [run for run in runs if run.attempt.name == f"efd-{SCORED[-1]}"]
    found = [run.step_seconds[client][0] for run in full if client in run.step_seconds]
    return [seconds for seconds in found if seconds is not None]


def _draw(lines: Sequence[_Line], path: Path) -> None:
    with panels(path, columns=2, title="Fashion-MNIST on an emulated fleet") as (widths, times):
        for line in lines:
            (drawn,) = widths.plot(
                [width / 1000 for width in SCORED],
                [line.accuracy[width] for width in SCORED],
                marker="o",
                label=line.method,
            )
            rounds = line.runs[-1].rounds
            seconds = accumulate(max(metrics.took.values()) for metrics in rounds)
            accuracies = [100 * metrics.first for metrics in rounds if metrics.first is not None]
            times.plot(list(seconds), accuracies, color=drawn.get_color())
        widths.set(xlabel="width of the model", ylabel="held-out accuracy after the last round (%)")
        times.set(xlabel="wall clock of the rounds (s)", ylabel="held-out accuracy, full width (%)")
