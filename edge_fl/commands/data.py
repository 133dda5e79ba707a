"""`edge-fl data`: what the data sets are, and what a partition gives each client."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from edge_fl.commands.options import Partition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edge_fl.data.registry import Dataset, Samples
    from edge_fl.data.statistics import PartStatistics

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Look at the data sets and how they are cut."
)


@app.callback()
def group() -> None:
    """Keep ``show`` a subcommand, though it is the only one."""


@app.command("show")
def show(
    *,
    data: Annotated[
        str, typer.Argument(help="A data set, or data of your own, such as 'csv:readings.csv?label=state'.")
    ],
    partition: Partition = "iid",
    clients: Annotated[int, typer.Option(min=1, help="Clients in all.")] = 10,
    plot: Annotated[Path | None, typer.Option(help="Draw sizes and labels to this file (PNG, PDF, SVG).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, client by client.")] = False,
) -> None:
    """Say what data are, and how many samples, labels and owners a partition gives each client.

    Example: edge-fl data show 'csv:readings.csv?label=state&owner=user' --partition owners --clients 3

    Example: edge-fl data show femnist --partition owners --clients 105 --plot femnist.png
    """
    from edge_fl.data.partition import Kind
    from edge_fl.data.partition import partition as cut
    from edge_fl.data.registry import dataset_names, load_dataset
    from edge_fl.data.sources.base import open_source
    from edge_fl.data.statistics import describe_parts

    kind = Kind.parse(partition)
    known = load_dataset(data) if data in dataset_names() else None
    train = open_source(data).samples() if known is None else known.train
    classes = _classes(train) if known is None else known.info.classes
    found = describe_parts(train, cut(train, clients, kind), classes)
    if plot is not None:
        from edge_fl.commands.data_plot import draw_parts

        draw_parts(found, f"{data}, {partition}, {clients} clients", plot)
    shown = _Shown(data, train, classes, known)
    typer.echo(json_module.dumps(_figures(shown, found)) if json else "\n".join(_lines(shown, found)))


class _Shown(NamedTuple):
    """What is shown: samples, how many classes their targets have (0: numbers), and the data set where it is one."""

    name: str
    train: "Samples"
    classes: int
    known: "Dataset | None"


def _classes(samples: "Samples") -> int:
    return int(samples.y.max()) + 1 if samples.y.dtype.kind == "i" and samples.y.size else 0


def _figures(shown: _Shown, found: "PartStatistics") -> dict[str, Any]:
    train, info = shown.train, None if shown.known is None else shown.known.info
    return {
        "dataset": shown.name,
        "train": len(train.y),
        "test": None if shown.known is None else len(shown.known.test.y),
        "input": {"shape": train.x.shape[1:], "dtype": "text" if train.are_texts else train.x.dtype.name},
        "inputs": {taken.name: {"shape": taken.shape, "dtype": taken.dtype} for taken in train.inputs},
        "target": train.y.shape[1:],
        "classes": shown.classes,
        "loss": None if info is None else info.loss,
        "top": None if info is None else info.top,
        "clients": {
            "samples": found.samples.tolist(),
            "labels": found.labels.tolist(),
            "owners": None if found.owners is None else found.owners.tolist(),
        },
    }


def _lines(shown: _Shown, found: "PartStatistics") -> list[str]:
    train = shown.train
    test = "" if shown.known is None else f" training and {len(shown.known.test.y)} test"
    each = "a class" if train.y.ndim == 1 else "a class a position"
    target = f"{each} of {shown.classes} each" if shown.classes else f"targets of shape {train.y.shape[1:]}"
    if train.are_continued:
        target = "each token the target of the one before"
    scored = "" if shown.known is None else f" ({shown.known.info.loss}, top-{shown.known.info.top} accuracy)"
    lines = [
        f"{shown.name}: {len(train.y)}{test} {_inputs_text(train)}, {target}{scored}",
        f"{len(found.samples)} clients; of each, smallest, median and largest:",
        f"  samples {_spread(found.samples)}",
        f"  labels  {_spread(found.labels)}",
    ]
    return lines if found.owners is None else [*lines, f"  owners  {_spread(found.owners)}"]


def _inputs_text(samples: "Samples") -> str:
    if samples.are_texts:
        return "texts"
    if not samples.inputs:
        return f"samples of shape {samples.x.shape[1:]} in {samples.x.dtype.name}"
    each = (f"{taken.name} of shape {taken.shape} in {taken.dtype}" for taken in samples.inputs)
    return f"samples of {', '.join(each)}"


def _spread(values: "NDArray[np.int64]") -> str:
    ordered = sorted(values.tolist())
    return f"{ordered[0]}  {ordered[len(ordered) // 2]}  {ordered[-1]}"
