"""Accuracy by width: lines of a table and a plot, of runs that train one model for all widths or one for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

from benchmarks.figures import deviation, spread
from benchmarks.grid import Filled
from benchmarks.plots import panels
from benchmarks.reference import FJORD_BY_WIDTH
from edge_fl.measure.table import Picture, Row

__all__ = ["MODEL", "SCORED", "SEPARATE", "Line", "line_row", "lines_of", "width_pictures"]

SCORED = (200, 400, 600, 800, 1000)
"""FjORD's widths, in thousandths: what ``uniform-5`` trains."""

SEPARATE = "efd"
"""The method of one model a width."""

MODEL = "width"
"""The column that tells the runs of one line apart."""

_REPORTED_IN = ("cifar-10", "uniform-5", 1.0)


@dataclass(frozen=True)
class Line:
    """A method in a setting, with all its runs."""

    dataset: str
    columns: Mapping[str, str | float]
    runs: tuple[Filled, ...]

    @property
    def method(self) -> str:
        """The recipe."""
        return self.runs[0].run.recipe

    @property
    def widths(self) -> list[int]:
        """Where its models are scored, in thousandths: the widths that it trains."""
        return sorted({width for filled in self.runs for width in filled.run.scored})

    @property
    def setting(self) -> tuple[str | float, ...]:
        """What it shares with the lines that it is compared with."""
        return (self.dataset, *(value for name, value in self.columns.items() if name != "method"))

    def accuracies(self, width: int) -> list[float]:
        """In percent, by seed, of the first units (``width``, thousandths)."""
        finals = [record.final for filled in self.runs for record in filled.records]
        return [100 * final.accuracy[width] for final in finals if final is not None and width in final.accuracy]


def lines_of(found: Sequence[Filled]) -> list[Line]:
    """The lines of a table, in the order of their first runs."""
    groups: dict[tuple[object, ...], list[Filled]] = {}
    for filled in found:
        own = {name: value for name, value in filled.entry.columns.items() if name != MODEL}
        groups.setdefault((filled.run.dataset, *own.items()), []).append(filled)
    return [
        Line(
            group[0].run.dataset,
            {name: value for name, value in group[0].entry.columns.items() if name != MODEL},
            tuple(group),
        )
        for group in groups.values()
    ]


def line_row(line: Line, lines: Sequence[Line]) -> Row:
    """A line's row, compared with the separate models of the same setting and with what is reported."""
    separate = next((o for o in lines if o.method == SEPARATE and o.setting == line.setting), None)
    baseline = {} if separate is None or separate is line else _means(separate)
    reported = FJORD_BY_WIDTH.get(line.method, ()) if line.setting == _REPORTED_IN else ()
    theirs, widths = dict(zip(SCORED, reported, strict=False)), _widths(lines)
    uplinks = [measured.uplink for f in line.runs for record in f.records for measured in record.rounds]
    failed = any(filled.failures for filled in line.runs)
    return {
        "data set": line.dataset,
        **line.columns,
        **{f"{w / 1000:g}": spread(line.accuracies(w)) or ("failed" if failed else "") for w in widths},
        f"- {SEPARATE}": _differences(_means(line), baseline),
        "reported": "/".join(f"{value:.1f}" for value in reported),
        "- reported": _differences(_means(line), theirs),
        "seeds": max(len(filled.records) for filled in line.runs),
        "models": len(line.runs),
        "uplink (kB)": f"{mean(uplinks) / 1000:,.1f}" if uplinks else "",
    }


def width_pictures(lines: Sequence[Line]) -> list[Picture]:
    """Accuracy against width, a picture for each data set."""
    return [
        Picture(
            dataset,
            f"Accuracy on {dataset} against the width of the model",
            partial(_draw, dataset, [line for line in lines if line.dataset == dataset]),
        )
        for dataset in dict.fromkeys(line.dataset for line in lines)
    ]


def _widths(lines: Sequence[Line]) -> list[int]:
    return sorted({width for line in lines for width in line.widths})


def _means(line: Line) -> dict[int, float]:
    return {width: mean(values) for width in line.widths if (values := line.accuracies(width))}


def _differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """By each width of ours, from the narrowest on; empty where there is nothing to compare with."""
    if not theirs:
        return ""
    return "/".join(f"{ours[w] - theirs[w]:+.1f}" if w in theirs else "?" for w in ours)


def _draw(dataset: str, lines: Sequence[Line], path: Path) -> None:
    settings = list(dict.fromkeys(line.setting for line in lines))
    with panels(path, columns=len(settings), title=dataset) as drawn:
        for panel, setting in zip(drawn, settings, strict=True):
            for line in (line for line in lines if line.setting == setting):
                points = {w / 1000: values for w in line.widths if (values := line.accuracies(w))}
                errors = [deviation(values) for values in points.values()]
                means = [mean(values) for values in points.values()]
                panel.errorbar(list(points), means, errors, marker="o", capsize=3, label=line.method)
            panel.set(
                xlabel="width of the model",
                ylabel="held-out accuracy after the last round (%)",
                title=", drop scale ".join(f"{value}" for value in setting[1:]),
            )
