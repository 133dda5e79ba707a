"""Every method and compressor, and the presets, on one plane: accuracy against the bytes that a client sends.

Like stands against like: a row with momentum on the server is compared with FedAvg that has the same.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from benchmarks.figures import accuracy_figures, by_dataset, deviation, difference, finals, notes_of, spread
from benchmarks.grid import Choice, Entry, Filled, Filling, entry, fill, read_method
from benchmarks.paper_tables import METHODS_1, METHODS_2, setting_text
from benchmarks.plots import panels
from benchmarks.runs import Run
from edge_fl.compressors.base import WarmsUp
from edge_fl.core.errors import ConfigError
from edge_fl.measure.table import Picture, Result, Row
from edge_fl.recipes.presets import PRESETS

__all__ = ["METHODS", "bench_uplink", "verdict"]

_WARMED = "best-uplink tcs.global_ratio=0.02 tcs.local_ratio=0.001 tcs.warmup=25"
"""What saves most in a steady round: 25 dense rounds come before."""
_TERNARY = (
    "fedavg+stc stc.ratio=0.04 server.momentum=0.5",
    "feddrop+stc stc.ratio=0.06 server.momentum=0.5",
    "afd+stc stc.ratio=0.06 server.momentum=0.5",
)
"""Other ways to upload 100 times fewer bytes, with the momentum of the preset."""

METHODS = tuple(
    dict.fromkeys(
        (
            *METHODS_1,
            *METHODS_2,
            "fedavg+topk",
            "fedavg+randk",
            "fedavg+fractional",
            "fedavg+tcs",
            *PRESETS,
            _WARMED,
            *_TERNARY,
        )
    )
)
_DENSE, _MOMENTUM = "fedavg", "server.momentum"
_STEADY = 10  # one round of so many, at the end, is taken for a steady one
_GOAL = 100.0
_COMPARED = ("- FedAvg's", "dense / all", "dense / steady", "goal")
_MARKERS, _COLOURS = "os^D", 10  # matplotlib begins its colours anew after so many


def bench_uplink(choice: Choice, how: Filling) -> Result:
    """Run each method, compressor and preset.

    Raises as :func:`benchmarks.grid.fill` does, and ConfigError where the rounds are so few that the last tenth is
    not past a compressor's warm-up.
    """
    asked = choice.methods or METHODS
    methods = tuple(dict.fromkeys((_DENSE, *map(_dense_beside, asked), *asked)))
    found, missing = fill([_entry(choice, d, method) for d in choice.datasets for method in methods], how)
    groups = by_dataset(found)
    return Result(
        title="Accuracy against uplink",
        command=choice.command("uplink"),
        about="What a client sends in all rounds together, warm-ups included, and in a steady round (the mean encoded "
        "frame of the last tenth of the rounds), beside FedAvg's dense frames. A row with momentum on the server is "
        "compared with FedAvg that has the same momentum. After the warm-up is the accuracy when a compressor's first, "
        "larger rounds are over, where it was looked at then. "
        f"{setting_text(choice)}Accuracy is that of [Table I](table1.md). The goal is the project's own: at least "
        f"{_GOAL:g} times fewer bytes over the whole run at the accuracy of FedAvg with the same momentum, within its "
        "seeds' deviation. Presets are those of `edge_fl/recipes/presets.py`, and differences are over the seeds that "
        "both methods have.",
        rows=[_row(filled, groups.get(filled.run.dataset, [])) for filled in found],
        notes=notes_of(found, missing),
        pictures=[
            Picture(
                dataset,
                f"Accuracy on {dataset} against the bytes of a steady round",
                partial(_draw, dataset, group),
            )
            for dataset, group in groups.items()
        ],
    )


def _entry(choice: Choice, dataset: str, method: str) -> Entry:
    made = entry(choice, dataset, method, {"method": method})
    warmup = _warmup(made.runs[0])
    if choice.rounds - _tail(choice.rounds) < warmup:
        raise ConfigError(
            f"The last tenth of {choice.rounds} rounds is not past the warm-up of '{method}', which takes {warmup}: "
            "raise --rounds."
        )
    return made


def _dense_beside(method: str) -> str:
    """FedAvg with the momentum that ``method`` has on the server."""
    momentum = read_method(method)[1].get(_MOMENTUM, 0.0)
    return f"{_DENSE} {_MOMENTUM}={momentum!r}" if momentum else _DENSE


def _warmup(run: Run) -> int:
    """The rounds of its compressor's warm-up."""
    compressor = run.open().compressor
    return compressor.warmup_rounds if isinstance(compressor, WarmsUp) else 0


def _tail(rounds: int) -> int:
    """How many rounds at the end are taken for steady ones."""
    return max(rounds // _STEADY, 1)


def _steady(filled: Filled) -> float:
    """Bytes that a client sends in a round at the end, the mean over seeds."""
    return mean(m.uplink for r in filled.records for m in r.rounds[-_tail(len(r.rounds)) :])


def _total(filled: Filled) -> float:
    """Bytes that a client sends who takes part in every round, the mean over seeds."""
    return mean(sum(m.uplink for m in r.rounds) for r in filled.records)


def _row(filled: Filled, group: Sequence[Filled]) -> Row:
    dense = next((other for other in group if _is_dense(other) and _momentum(other) == _momentum(filled)), None)
    row: dict[str, str | float] = {
        "data set": filled.run.dataset,
        **filled.entry.columns,
        **accuracy_figures(filled),
        "after the warm-up (%)": spread(_warmed(filled)),
        **dict.fromkeys(("all rounds (MB)", "a steady round (kB)", *_COMPARED), ""),
    }
    if not filled.records:
        return row
    row |= {"all rounds (MB)": _total(filled) / 1e6, "a steady round (kB)": _steady(filled) / 1000}
    apart = None if dense is None else difference(filled, dense)
    if dense is None or apart is None:
        return row
    ratio = _total(dense) / _total(filled)
    found = (apart, ratio, _steady(dense) / _steady(filled), verdict(apart, ratio, finals(dense)))
    return row | dict(zip(_COMPARED, found, strict=True))


def _is_dense(filled: Filled) -> bool:
    return filled.run.recipe == _DENSE


def _momentum(filled: Filled) -> float:
    held: float = filled.run.in_effect().get(_MOMENTUM, 0.0)
    return held


def _warmed(filled: Filled) -> list[float]:
    """The accuracies, in percent, after the last round of the warm-up, where there is one that was looked at."""
    warmup = _warmup(filled.run)
    curves = [record.by_round for record in filled.records]
    return [100 * curve[warmup] for curve in curves if warmup in curve]


def verdict(apart: float, ratio: float, dense: Sequence[float]) -> str:
    """Whether the goal is reached, where the bytes are few enough; FedAvg's deviation takes two seeds."""
    if ratio < _GOAL or len(dense) < 2:
        return ""
    return "reached" if apart >= -deviation(dense) else "missed by accuracy"


def _draw(dataset: str, group: Sequence[Filled], path: Path) -> None:
    with panels(path, columns=2, title=dataset) as drawn:
        for panel, bytes_of, axis in zip(
            drawn,
            (_steady, _total),
            ("uplink of a client in a steady round (bytes)", "uplink of a client in all rounds (bytes)"),
            strict=True,
        ):
            for index, filled in enumerate(group):
                values = finals(filled)
                marker = _MARKERS[index // _COLOURS % len(_MARKERS)]
                x, y, error = bytes_of(filled), mean(values), deviation(values)
                panel.errorbar(x, y, error, marker=marker, capsize=3, label=filled.entry.label)
            panel.set(xlabel=axis, ylabel="held-out accuracy after the last round (%)", xscale="log")
