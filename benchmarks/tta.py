"""Time to accuracy: the virtual time until a method's model is as good as FedBIAD's paper asks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.figures import by_dataset, clocks, curve_picture, notes_of, spread
from benchmarks.grid import Choice, Filled, Filling, entry, fill
from benchmarks.paper_tables import METHODS_1, setting_text
from benchmarks.reference import TIME_SAVED
from benchmarks.setups import setup_of
from device_sim.simulation.links import Link
from device_sim.simulation.time_model import Clock, time_to
from edge_fl.core.errors import ConfigError
from edge_fl.measure.table import Picture, Result, Row

__all__ = ["Reached", "bench_tta", "reached", "timed_rows"]

_OURS = "fedbiad"


@dataclass(frozen=True)
class Reached:
    """When each seed's run was first at the target: rounds, and virtual seconds; None where it never was."""

    rounds: tuple[float | None, ...]
    seconds: tuple[float | None, ...]

    @property
    def mean_seconds(self) -> float | None:
        """The mean over the seeds, None unless all reached it."""
        times = [seconds for seconds in self.seconds if seconds is not None]
        return mean(times) if times and len(times) == len(self.seconds) else None


def reached(filled: Filled, clock: Clock, target: float) -> Reached:
    """When the runs of an entry reached the accuracy ``target`` (a fraction)."""
    rounds, seconds = [], []
    for record in filled.records:
        evaluated, accuracies = record.curve
        elapsed = clock.elapsed(measured.traffic for measured in record.rounds)
        rounds.append(time_to(target, accuracies.tolist(), evaluated.astype(float).tolist()))
        seconds.append(time_to(target, accuracies.tolist(), [elapsed[n - 1] for n in evaluated]))
    return Reached(tuple(rounds), tuple(seconds))


def bench_tta(choice: Choice, how: Filling, link: Link, slowdown: float) -> Result:
    """Make the runs of Table I that are missing, and time them all.

    Parameters
    ----------
    link
        Every client's.
    slowdown
        How much longer than here a step takes on every client.

    Raises
    ------
    EdgeFLError
        As :func:`benchmarks.grid.fill` does, and ConfigError where a data set has no target.
    """
    for dataset in choice.datasets:
        if setup_of(dataset).target is None:
            raise ConfigError(f"There is no accuracy to time '{dataset}' to: choose another data set.")
    entries = [
        entry(choice, dataset, method, {"method": method})
        for dataset in choice.datasets
        for method in choice.methods or METHODS_1
    ]
    found, missing = fill(entries, how)
    rows: list[Row] = []
    pictures: list[Picture] = []
    for dataset, group in by_dataset(found).items():
        times = clocks(group, how, link, slowdown)
        rows += timed_rows(dataset, group, times)
        pictures.append(curve_picture(dataset, group, times))
    if not rows:
        raise ConfigError("Every run failed, so there is nothing to time: lower the step size.")
    return Result(
        title="Time to accuracy",
        command=f"{choice.command('tta')} --link {link.down:g}/{link.up:g} --slowdown {slowdown:g}",
        about=f"The virtual time until the model's held-out accuracy is first at the target. {setting_text(choice)}A "
        "round lasts as long as its slowest client, which downloads the model, trains, and uploads its update: frames "
        f"over links of {link.down:g} Mbps down and {link.up:g} Mbps up, and local training timed here in onnx, one "
        f"thread, all methods in turn, times {slowdown:g}; the server takes no time. Step is the CPU time of a "
        "local step with its share of all else a device does in a round. Times are means over the seeds that reached "
        "the target. Change is FedBIAD's time against the method's, negative where FedBIAD is quicker.",
        rows=rows,
        notes=notes_of(found, missing),
        pictures=pictures,
    )


def timed_rows(dataset: str, group: Sequence[Filled], times: Sequence[Clock]) -> list[Row]:
    """A line for each method of a data set: when it reached the target, and FedBIAD's time against its own."""
    target = setup_of(dataset).target or 0.0
    all_reached = [reached(filled, clock, target) for filled, clock in zip(group, times, strict=True)]
    means = {filled.run.recipe: found.mean_seconds for filled, found in zip(group, all_reached, strict=True)}
    return [
        _row(filled, clock, found, means, target)
        for filled, clock, found in zip(group, times, all_reached, strict=True)
    ]


def _row(filled: Filled, clock: Clock, found: Reached, means: Mapping[str, float | None], target: float) -> Row:
    method = filled.run.recipe
    seconds = [s for s in found.seconds if s is not None]
    own, theirs = means.get(_OURS), means[method]
    compared = method != _OURS and own is not None and theirs is not None
    traffic = [measured.traffic for record in filled.records for measured in record.rounds]
    return {
        "data set": filled.run.dataset,
        **filled.entry.columns,
        "target (%)": 100 * target,
        "reached by": f"{len(seconds)} of {len(found.seconds)} seeds",
        "rounds": spread([r for r in found.rounds if r is not None], 1) or "not reached",
        "time (s)": spread(seconds, 1) or "not reached",
        "a round (s)": mean(clock.round(moved) for moved in traffic),
        "of it upload (s)": mean(8e-6 * max(moved.up.values()) / clock.links[0].up for moved in traffic),
        "of it training (s)": max(clock.training(tier) for tier in range(filled.run.tiers)),
        "step (ms)": 1e3 * mean(clock.steps),
        "change (%)": 100 * (own / theirs - 1) if compared and own is not None and theirs is not None else "",
        "paper's (%)": TIME_SAVED.get(filled.run.dataset, {}).get(method, ""),
    }
