"""Where FedBIAD's paper may be: FedAvg by partition, step size, local steps and batch, beside the paper's accuracy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean

from benchmarks.figures import accuracy_figures, by_dataset, curves_of, deviation, difference, finals, notes_of
from benchmarks.grid import Choice, Entry, Filled, Filling, entry, fill
from benchmarks.plots import panels
from benchmarks.reference import TABLE_1
from edge_fl.measure.table import Picture, Result, Row
from exporter.measure.cases import BATCH

__all__ = ["BATCHES", "LOCAL_STEPS", "PARTITIONS", "RATES", "Settings", "bench_regime"]

PARTITIONS = ("labels=2", "labels=5")
LOCAL_STEPS = (5, 20, 60)
RATES = (0.01, 0.05, 0.1)
BATCHES = (BATCH,)
_DENSE = "fedavg"
_PAPERS = 81.18, 1.09
"""FedAvg's accuracy (%) and deviation (points) on Fashion-MNIST in the paper's Table I."""
_SHARE = 0.25
"""Of the rounds, the last, over which one run's swing is taken."""


@dataclass(frozen=True)
class Settings:
    """What the paper leaves open: how labels are cut over clients, step size, local steps (V) and batch."""

    partitions: Sequence[str] = PARTITIONS
    local_steps: Sequence[int] = LOCAL_STEPS
    rates: Sequence[float] = RATES
    batches: Sequence[int] = BATCHES

    def of(self, choice: Choice) -> Iterator[Choice]:
        """``choice`` in each setting."""
        for partition, batch, steps, rate in product(self.partitions, self.batches, self.local_steps, self.rates):
            yield replace(choice, partition=partition, batch=batch, local_steps=steps, lr=rate)

    @property
    def options(self) -> str:
        """The options that give the same settings."""
        return "".join(
            [
                *(f" --partition {name}" for name in self.partitions),
                *(f" --local-steps {steps}" for steps in self.local_steps),
                *(f" --lr {rate:g}" for rate in self.rates),
                *(f" --batch {batch}" for batch in self.batches),
            ]
        )


def bench_regime(choice: Choice, how: Filling, settings: Settings) -> Result:
    """Run each method, FedAvg if none is chosen, in each setting; raises as :func:`benchmarks.grid.fill` does."""
    found, missing = fill(
        [
            _entry(chosen, dataset, method)
            for dataset in choice.datasets
            for chosen in settings.of(choice)
            for method in choice.methods or (_DENSE,)
        ],
        how,
    )
    baselines = {_setting(f): f for f in found if f.entry.columns["method"] == _DENSE}
    return Result(
        title="The paper's regime",
        command=choice.command("regime") + settings.options,
        about="FedBIAD's paper gives neither step size, local steps nor batch, and names the partition by a citation: "
        f"FedAvg has {_PAPERS[0]} ± {_PAPERS[1]} % on Fashion-MNIST there. Each row is one setting: the labels of a "
        "client (`labels=2` is two of ten), V local steps, a step size and a batch. Accuracy is that of the model "
        f"after the last of {choice.rounds} rounds (percent, mean and standard deviation over seeds). Deviation is "
        "that standard deviation. Swing is the standard deviation of one run's accuracies over the last quarter of "
        "its rounds, the mean over seeds. The paper does not say which of them it prints. Differences are to "
        "FedAvg's row of the same setting, over the seeds that both have, and to the paper's number of the same "
        "method.",
        rows=[_row(filled, baselines) for filled in found],
        notes=notes_of(found, missing),
        pictures=[
            Picture(
                dataset,
                f"Accuracy and swing on {dataset} by setting",
                partial(_draw, dataset, group),
            )
            for dataset, group in by_dataset(found).items()
        ],
    )


def _entry(choice: Choice, dataset: str, method: str) -> Entry:
    columns: dict[str, str | float] = {
        "method": method,
        "partition": choice.partition,
        "V": str(choice.local_steps),
        "step size": choice.lr or 0.0,
        "batch": str(choice.batch),
    }
    return entry(choice, dataset, method, columns)


def _setting(filled: Filled) -> tuple[str, str, int, float, int]:
    run = filled.run
    return run.dataset, run.partition, run.local_steps, run.lr, run.batch


def _swing(filled: Filled) -> float | None:
    """The deviation of accuracy over the last quarter of the rounds, in points, the mean over seeds; None where a
    model was looked at once there.
    """
    rounds, curves = curves_of(filled)
    last = curves[:, rounds > (1 - _SHARE) * filled.run.rounds]
    return mean(deviation([float(value) for value in curve]) for curve in last) if last.shape[1] > 1 else None


def _row(filled: Filled, baselines: dict[tuple[str, str, int, float, int], Filled]) -> Row:
    theirs = TABLE_1.get(filled.run.dataset, {}).get(filled.run.recipe)
    baseline = baselines.get(_setting(filled))
    apart = None if baseline is None else difference(filled, baseline)
    ours, swing = finals(filled), _swing(filled) if filled.records else None
    return {
        "data set": filled.run.dataset,
        **filled.entry.columns,
        **accuracy_figures(filled),
        "deviation": deviation(ours) if len(ours) > 1 else "",
        "swing": "" if swing is None else swing,
        "- FedAvg's": "" if apart is None else apart,
        "paper's (%)": f"{theirs.accuracy:.2f}" if theirs else "",
        "- paper's": mean(ours) - theirs.accuracy if theirs and ours else "",
    }


def _draw(dataset: str, group: Sequence[Filled], path: Path) -> None:
    lines: dict[str, list[Filled]] = {}
    for filled in group:
        lines.setdefault(f"{filled.entry.columns['method']}, {filled.run.partition}", []).append(filled)
    with panels(path, columns=1, title=dataset) as (panel,):
        for label, points in lines.items():
            seen = [(mean(finals(point)), swing) for point in points if (swing := _swing(point)) is not None]
            if seen:
                panel.plot(*zip(*seen, strict=True), "o", label=label)
        if dataset == "fashion-mnist":
            panel.plot([_PAPERS[0]], [_PAPERS[1]], "k*", markersize=12, label="paper's FedAvg")
        panel.set(
            xlabel="held-out accuracy after the last round (%)",
            ylabel="swing over the last quarter of the rounds (points)",
            ylim=(0, None),
        )
