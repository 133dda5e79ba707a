"""What tables and plots say of a grid's runs: means and spread over seeds, and curves over rounds, bytes and time."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
from numpy.typing import NDArray

from benchmarks.code_version import code_of
from benchmarks.grid import Filled, Filling
from benchmarks.plots import panels
from benchmarks.runs import Measured, bundle_of
from device_sim.simulation.links import Link
from device_sim.simulation.local_time import Local, step_seconds
from device_sim.simulation.time_model import Clock
from edge_fl.measure.table import Picture

__all__ = [
    "accuracy_figures",
    "by_dataset",
    "clocks",
    "curve_picture",
    "curves_of",
    "deviation",
    "difference",
    "down_shares",
    "finals",
    "notes_of",
    "spread",
    "uplink_figures",
]

_Line = Sequence[float] | NDArray[np.float64]


def finals(filled: Filled) -> list[float]:
    """The accuracy of the last round, in percent, by seed."""
    return [100 * float(record.curve[1][-1]) for record in filled.records]


def difference(filled: Filled, other: Filled) -> float | None:
    """By how many points ``filled`` is above ``other``, the mean over the seeds that both have; None without any."""
    theirs = {record.run.seed: accuracy for record, accuracy in zip(other.records, finals(other), strict=True)}
    ours = zip(filled.records, finals(filled), strict=True)
    apart = [accuracy - theirs[r.run.seed] for r, accuracy in ours if r.run.seed in theirs]
    return mean(apart) if apart else None


def deviation(values: Sequence[float]) -> float:
    """The standard deviation, 0 of a single value."""
    return stdev(values) if len(values) > 1 else 0.0


def curves_of(filled: Filled) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The rounds ``[n]`` that all runs were evaluated after, and their accuracies in percent, ``[runs, n]``."""
    curves = [record.by_round for record in filled.records]
    shared = sorted(set.intersection(*map(set, curves)))
    return np.array(shared), np.array([[100 * curve[n] for n in shared] for curve in curves])


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The mean, and the standard deviation where there are several; nothing where there are none."""
    if not values:
        return ""
    text = f"{mean(values):.{digits}f}"
    return f"{text} ± {stdev(values):.{digits}f}" if len(values) > 1 else text


def accuracy_figures(filled: Filled) -> dict[str, str | float]:
    """Accuracy after the last round, and the best of any round."""
    best = [100 * float(record.curve[1].max()) for record in filled.records]
    return {
        "accuracy (%)": spread(finals(filled)) or "failed",
        "best (%)": spread(best),
        "seeds": len(filled.records),
    }


def uplink_figures(filled: Filled) -> dict[str, str | float]:
    """The mean frame, how much larger a dense one is (also in the last round alone), and the CPU time of a round."""
    if not filled.records:
        return dict.fromkeys(("uplink (kB)", "dense / uplink", "in the last round", "training (CPU s)"), "")
    uplink = mean(_each(filled, lambda measured: measured.uplink))
    last = mean(record.rounds[-1].uplink for record in filled.records)
    dense = filled.records[0].dense
    return {
        "uplink (kB)": f"{uplink / 1000:,.1f}",
        "dense / uplink": dense / uplink,
        "in the last round": dense / last,
        "training (CPU s)": median(_each(filled, lambda measured: measured.cpu)),
    }


def down_shares(filled: Filled) -> list[float]:
    """The most that each round sent down to a client, as a share of a dense frame."""
    return [
        max(measured.traffic.down.values()) / record.dense
        for record in filled.records
        for measured in record.rounds
    ]


def notes_of(found: Sequence[Filled], missing: Sequence[str]) -> list[str]:
    """A sentence for each entry with a run that failed and for what was not run of each seed, one for what was looked
    at less often than asked, one for the parts of recipes whose code has changed, and one for what the runs took.
    """
    failed = [f"{f.run.dataset}, {f.entry.label}: {f.failures[0]}" for f in found if f.failures]
    looks = [(record.run.evaluate_every, f.run.evaluate_every) for f in found for record in f.records]
    rarer = [every for every, asked in looks if every > asked]
    seldom = [f"Some models were looked at after every {max(rarer)} rounds only."] if rarer else []
    unmade = [f"Not run yet, for want of time, on {runs}." for runs in missing]
    hours = sum(measured.cpu for f in found for record in f.records for measured in record.rounds) / 3600
    on = sorted({record.accelerator for f in found for record in f.records if record.accelerator})
    where = f" on {' and '.join(on)}" if on else ""
    return [
        *failed,
        *unmade,
        *seldom,
        *_other_code(found),
        f"Training took {hours:.2g} core-hours{where}, evaluation not counted.",
    ]


def _other_code(found: Sequence[Filled]) -> list[str]:
    records = [record for filled in found for record in filled.records]
    known = [(record.code, code_of(record.run.open())) for record in records if record.code]
    differing = (code.items() - today.items() for code, today in known)
    changed = Counter(part for parts in differing for part, _ in sorted(parts) if part != "edge_fl")
    unknown = len(records) - len(known)
    told = [f"The code of `{part}` has changed since {count} of these runs." for part, count in changed.items()]
    return [*told, *([f"{unknown} of these runs do not say which code made them."] if unknown else [])]


def by_dataset(found: Iterable[Filled]) -> dict[str, list[Filled]]:
    """What has records, by data set."""
    groups: dict[str, list[Filled]] = {}
    for filled in found:
        if filled.records:
            groups.setdefault(filled.run.dataset, []).append(filled)
    return groups


def clocks(found: Sequence[Filled], how: Filling, link: Link, slowdown: float) -> list[Clock]:
    """A clock for each, from its local training timed in turn with that of the others, all of one data set."""
    how.report(f"{found[0].run.dataset}: timing local training")
    local = [Local(bundle_of(f.run, how.cache, how.report), f.run.config(), f.run.population()) for f in found]
    steps = step_seconds(local)
    return [
        Clock([link], seconds, f.run.local_steps, (slowdown,)) for f, seconds in zip(found, steps, strict=True)
    ]


def curve_picture(dataset: str, found: Sequence[Filled], times: Sequence[Clock]) -> Picture:
    """Accuracy against rounds, bytes sent and virtual time: the mean over seeds, and their range."""
    axes: dict[str, list[list[_Line]]] = {
        "round": [[range(1, len(r.rounds) + 1) for r in f.records] for f in found],
        "uplink of a client taking part in every round (MB)": [
            [np.cumsum([m.uplink for m in r.rounds]) / 1e6 for r in f.records] for f in found
        ],
        "virtual time (s)": [
            [clock.elapsed(m.traffic for m in r.rounds) for r in f.records]
            for f, clock in zip(found, times, strict=True)
        ],
    }
    return Picture(
        dataset,
        f"Accuracy on {dataset} against rounds, uplink and virtual time",
        lambda path: _draw(dataset, found, axes, path),
    )


def _draw(
    dataset: str,
    found: Sequence[Filled],
    axes: Mapping[str, list[list[_Line]]],
    path: Path,
) -> None:
    from matplotlib.ticker import MaxNLocator

    with panels(path, columns=len(axes), title=dataset) as drawn:
        for panel, (name, places) in zip(drawn, axes.items(), strict=True):
            for filled, xs in zip(found, places, strict=True):
                rounds, curves = curves_of(filled)
                x = np.mean(np.array(xs), axis=0)[rounds - 1]
                (line,) = panel.plot(x, curves.mean(axis=0), label=filled.entry.label, linewidth=1.2)
                panel.fill_between(x, curves.min(axis=0), curves.max(axis=0), color=line.get_color(), alpha=0.15)
            panel.set(xlabel=name, ylabel="held-out accuracy (%)")
        drawn[0].xaxis.set_major_locator(MaxNLocator(integer=True))


def _each(filled: Filled, value: Callable[[Measured], float]) -> Iterable[float]:
    return (value(measured) for record in filled.records for measured in record.rounds)
