"""Runs side by side: the score against rounds, bytes and time, and a table, as a page or a picture."""

import base64
import html
import io
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from edge_fl.core.atomic import write_atomically
from edge_fl.core.errors import ConfigError, StateError
from edge_fl.metrics.text import is_percent
from edge_fl.recipes.given import Given, as_given
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.runs.run import Run

__all__ = ["cell", "compare", "comparison"]

_MIB = 1 << 20
# What says nothing beside another run's: names, folders, and what has a column or settings of its own.
_OWN = (
    *("run", "method", "code", "code_sha256", "parameters", "defaults"),
    *("about", "version", "began", "bundle", "bundle_sha256"),
)
_LABEL = 120  # characters of a line of the legend


def comparison(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row a run: its folder and method, rounds, last scores, losses, bytes up and down, and seconds.

    ``settings`` has those in which the runs differ (:func:`_settings`); it is missing where they differ in none.
    """
    return [
        {
            "run": str(run.folder),
            "method": run.config.method,
            **({"settings": settings} if settings else {}),
            "rounds": len(run.metrics),
            **run.scores,
            "loss": run.metrics[-1].loss if run.metrics else None,
            "train_loss": run.metrics[-1].train_loss if run.metrics else None,
            **_epsilon(run),
            "uplink_mib": sum(sum(metrics.uplink.values()) for metrics in run.metrics) / _MIB,
            "downlink_mib": sum(sum(metrics.downlink.values()) for metrics in run.metrics) / _MIB,
            "seconds": sum(metrics.seconds for metrics in run.metrics),
        }
        for run, settings in zip(runs, _settings(runs), strict=True)
    ]


def compare(runs: Sequence[Run], path: Path, *, score: str | None = None) -> Path:
    """Write the comparison of ``runs``: a self-contained HTML page, or the picture alone as PNG, SVG or PDF.

    Parameters
    ----------
    score
        What is drawn; None for the first score that all runs have, or the training loss.

    Raises
    ------
    ConfigError
        When no run has that score, or ``path`` ends as no page and no picture does.
    StateError
        When ``path`` cannot be written.
    """
    chosen = _chosen(runs, score)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("html", "png", "svg", "pdf"):
        raise ConfigError(f"A comparison is .html, .png, .svg or .pdf, not '{path}'.")
    picture = _drawn(runs, chosen, "png" if kind == "html" else kind)
    try:
        write_atomically(path, _page(runs, picture).encode() if kind == "html" else picture)
    except OSError as error:
        raise StateError(f"The comparison cannot be written to '{path}': {error.strerror}.") from error
    return path


def _chosen(runs: Sequence[Run], score: str | None) -> str:
    names = [name for name in (runs[0].scores if runs else {}) if all(name in run.scores for run in runs)]
    if score is None:
        return names[0] if names else "train_loss"
    if score != "train_loss" and not any(score in run.scores for run in runs):
        raise ConfigError(f"No run has the score '{score}'; they have {', '.join(names) or 'none in common'}.")
    return score


def _drawn(runs: Sequence[Run], score: str, kind: str) -> bytes:
    from matplotlib.figure import Figure

    axes: tuple[tuple[str, Callable[[RoundMetrics], float]], ...] = (
        ("round", lambda _: 1),
        ("MiB uploaded by all clients", lambda metrics: sum(metrics.uplink.values()) / _MIB),
        ("seconds", lambda metrics: metrics.seconds),
    )
    factor, unit = (100, " (%)") if is_percent(score) else (1, "")
    size = 15, 4.2 + 0.25 * len(runs)  # a line of the legend each
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(axes), sharey=True)
    names = _names(runs)
    for panel, (label, of) in zip(panels, axes, strict=True):
        for run, name in zip(runs, names, strict=True):
            at = list(accumulate(of(metrics) for metrics in run.metrics))
            points = [(x, _value(metrics, score)) for x, metrics in zip(at, run.metrics, strict=True)]
            found = [(x, factor * value) for x, value in points if value is not None]
            panel.plot([x for x, _ in found], [y for _, y in found], marker="o", markersize=3, label=name)
        panel.set(xlabel=label)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel(f"{score}{unit}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", frameon=False)
    made = io.BytesIO()
    figure.savefig(made, format=kind, dpi=120)
    return made.getvalue()


def _names(runs: Sequence[Run]) -> list[str]:
    """What the legend calls each run."""
    lines = (
        f"{run.config.method} ({run.folder.name}) {cell(s)}" for run, s in zip(runs, _settings(runs), strict=True)
    )
    # Of what lies between two dollar signs matplotlib makes mathematics.
    return [line[:_LABEL].rstrip().replace("$", r"\$") for line in lines]


def _settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Of each run the settings in which the runs differ, by name.

    A method's parameters count as settings, and have its name before theirs where that is a run's setting, too. What a
    run is told about takes the place of a setting of that name that has its default, as ``--tiers 3`` does. What
    not all runs have is told of parameters alone, where it is not the default.
    """
    each = [_flat(run) for run in runs]
    names = dict.fromkeys(name for settings in each for name in settings)
    told: list[dict[str, Any]] = [{} for _ in runs]
    for name in names:
        held = [settings.get(name) for settings in each]
        found = [given for given in held if given is not None]
        differ = any(given.value != found[0].value for given in found)
        for row, given in zip(told, held, strict=True):
            if given is not None and (differ or (len(found) < len(runs) and not given.is_default)):
                row[name] = given.value
    return told


def _flat(run: Run) -> dict[str, Given]:
    config = run.config
    settings = {name: value for name, value in msgspec.to_builtins(config).items() if name not in _OWN}
    about = {name: value for name, value in config.about.items() if name not in _OWN}
    defaults = {field.name: field.default for field in msgspec.structs.fields(config)}
    unset = {name for name, value in settings.items() if value == defaults.get(name)}
    others = settings | {name: value for name, value in about.items() if name not in settings or name in unset}
    if "parameters" in config.about:  # of code that is not at hand
        told, are_defaults = config.about["parameters"], config.about["defaults"]
        parameters = {name: Given(value, is_default=name in are_defaults) for name, value in told.items()}
    else:
        parameters = as_given(config.method, config.parameters)
    return {  # what another command or version records none of is no choice of its user: as a default
        **{name: Given(value, is_default=True) for name, value in others.items()},
        **{f"{config.method}.{name}" if name in settings else name: given for name, given in parameters.items()},
    }


def _epsilon(run: Run) -> dict[str, float | None]:
    """What a private run's rounds cost."""
    spent = run.metrics[-1].privacy if run.metrics else None
    return {} if spent is None else {"epsilon": spent.epsilon}


def _value(metrics: RoundMetrics, score: str) -> float | None:
    return metrics.train_loss if score == "train_loss" else metrics.scores.get(score)


def _page(runs: Sequence[Run], picture: bytes) -> str:
    rows = comparison(runs)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell(row.get(column)))}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        "<title>edge-fl compare</title><style>body{font:15px/1.5 system-ui,sans-serif;margin:2rem;max-width:1200px}"
        "img{max-width:100%}div{overflow-x:auto}td,th{padding:.3rem .8rem;text-align:left;border-bottom:1px solid #ddd}"
        "</style><h1>Runs side by side</h1>"
        f'<img alt="Scores against rounds, bytes and time" src="data:image/png;base64,'
        f'{base64.b64encode(picture).decode()}"><div><table><tr>{head}</tr>{body}</table></div></html>'
    )


def cell(value: object) -> str:
    """A value of a row of :func:`comparison` for people."""
    if isinstance(value, dict):
        return " ".join(f"{name}={_setting(part)}" for name, part in value.items())
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _setting(value: object) -> str:
    if isinstance(value, dict):
        return f"({cell({name: part for name, part in value.items() if part is not None})})"
    if isinstance(value, list | tuple):
        return ",".join(map(_setting, value)) or "none"
    return "none" if value is None else cell(value)
