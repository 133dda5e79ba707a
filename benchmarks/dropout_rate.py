"""Accuracy and bytes against the dropout rate."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from benchmarks.figures import accuracy_figures, by_dataset, deviation, finals, notes_of, uplink_figures
from benchmarks.grid import Choice, Entry, Filled, Filling, entry, fill, opened_method
from benchmarks.paper_tables import setting_text
from benchmarks.plots import panels
from edge_fl.core.errors import ConfigError
from edge_fl.measure.table import Picture, Result
from edge_fl.methods.base import DropoutParameters

__all__ = ["METHODS", "RATES", "bench_dropout_rate"]

METHODS = ("feddrop", "fedbiad")
RATES = (100, 200, 300, 400, 500, 600, 700)
"""p, in thousandths."""


def bench_dropout_rate(choice: Choice, how: Filling, rates: Sequence[int] = RATES) -> Result:
    """Run each method at each rate, and FedAvg, which drops nothing.

    Raises as :func:`benchmarks.grid.fill` does, and ConfigError for a method that has no dropout rate.
    """
    methods = choice.methods or METHODS
    for method in methods:
        if not isinstance(opened_method(method).parameters, DropoutParameters):
            raise ConfigError(f"'{method}' has no dropout rate to vary: choose another method.")
    found, missing = fill([e for d in choice.datasets for e in _entries(choice, d, methods, rates)], how)
    return Result(
        title="Dropout rate",
        command=choice.command("dropout-rate") + "".join(f" --rate {rate / 1000:g}" for rate in rates),
        about="Accuracy and uplink against the dropout rate p; FedAvg, which drops nothing, is there at p = 0. "
        f"{setting_text(choice)}Columns are those of [Table I](table1.md).",
        rows=[
            {
                "data set": filled.run.dataset,
                **filled.entry.columns,
                **accuracy_figures(filled),
                **uplink_figures(filled),
            }
            for filled in found
        ],
        notes=notes_of(found, missing),
        pictures=[
            Picture(
                dataset,
                f"Accuracy and uplink on {dataset} against the dropout rate",
                partial(_draw, dataset, group),
            )
            for dataset, group in by_dataset(found).items()
        ],
    )


def _entries(choice: Choice, dataset: str, methods: Sequence[str], rates: Sequence[int]) -> list[Entry]:
    varied = [
        entry(choice, dataset, method, {"method": method, "p": rate / 1000}, {"dropout": [rate]})
        for rate in rates
        for method in methods
    ]
    return [entry(choice, dataset, "fedavg", {"method": "fedavg", "p": 0.0}), *varied]


def _draw(dataset: str, group: Sequence[Filled], path: Path) -> None:
    lines: dict[str, list[Filled]] = {}
    for filled in group:
        lines.setdefault(str(filled.entry.columns["method"]), []).append(filled)
    with panels(path, columns=2, title=dataset) as (left, right):
        for method, points in lines.items():
            rates = [float(point.entry.columns["p"]) for point in points]
            accuracies = [finals(point) for point in points]
            errors = [deviation(values) for values in accuracies]
            left.errorbar(
                rates, [mean(values) for values in accuracies], errors, marker="o", capsize=3, label=method
            )
            sizes = [mean(m.uplink for r in point.records for m in r.rounds) / 1000 for point in points]
            right.plot(rates, sizes, marker="o")
        left.set(xlabel="dropout rate p", ylabel="held-out accuracy after the last round (%)")
        right.set(xlabel="dropout rate p", ylabel="uplink of a client and round (kB)", ylim=(0, None))
