"""`edge-fl data`: what the data sets are, and what a partition gives each client."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_fl.commands.options import Partition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edge_fl.data.registry import Dataset
    from edge_fl.data.statistics import PartStatistics

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Look at the data sets and how they are cut.")


@app.callback()
def data() -> None:
    """Keep ``show`` a subcommand, though it is the only one."""


@app.command("show")
def show(
    *,
    dataset: Annotated[str, typer.Argument(help="A data set.")],
    partition: Partition = "iid",
    clients: Annotated[int, typer.Option(min=1, help="Clients in all.")] = 10,
    plot: Annotated[Path | None, typer.Option(help="Draw sizes and labels to this file (PNG, PDF, SVG).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, client by client.")] = False,
) -> None:
    """Say what a data set is, and how many samples, labels and owners a partition gives each client.

    Example: edge-fl data show femnist --partition owners --clients 105 --plot femnist.png
    """
    from edge_fl.data.partition import Kind
    from edge_fl.data.partition import partition as cut
    from edge_fl.data.registry import load_dataset
    from edge_fl.data.statistics import describe_parts

    kind = Kind.parse(partition)
    loaded = load_dataset(dataset)
    found = describe_parts(loaded.train, cut(loaded.train, clients, kind), loaded.info.classes)
    if plot is not None:
        from edge_fl.commands.data_plot import draw_parts

        draw_parts(found, f"{dataset}, {partition}, {clients} clients", plot)
    text = json_module.dumps(_figures(loaded, found)) if json else "\n".join(_lines(loaded, found))
    typer.echo(text)


def _figures(dataset: "Dataset", found: "PartStatistics") -> dict[str, Any]:
    info = dataset.info
    return {
        "dataset": info.name,
        "train": len(dataset.train.y),
        "test": len(dataset.test.y),
        "input": {"shape": info.input_shape, "dtype": info.input_dtype},
        "target": info.target_shape,
        "classes": info.classes,
        "loss": info.loss,
        "top": info.top,
        "clients": {
            "samples": found.samples.tolist(),
            "labels": found.labels.tolist(),
            "owners": None if found.owners is None else found.owners.tolist(),
        },
    }


def _lines(dataset: "Dataset", found: "PartStatistics") -> list[str]:
    info = dataset.info
    lines = [
        f"{info.name}: {len(dataset.train.y)} training and {len(dataset.test.y)} test samples of shape "
        f"{info.input_shape} in {info.input_dtype}, {'a class' if not info.target_shape else 'a class a position'} "
        f"of {info.classes} each ({info.loss}, top-{info.top} accuracy)",
        f"{len(found.samples)} clients; of each, smallest, median and largest:",
        f"  samples {_spread(found.samples)}",
        f"  labels  {_spread(found.labels)}",
    ]
    return lines if found.owners is None else [*lines, f"  owners  {_spread(found.owners)}"]


def _spread(values: "NDArray[np.int64]") -> str:
    ordered = sorted(values.tolist())
    return f"{ordered[0]}  {ordered[len(ordered) // 2]}  {ordered[-1]}"
