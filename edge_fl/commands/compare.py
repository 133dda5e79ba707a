"""`edge-fl compare`: runs side by side."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from edge_fl.commands.tables import show_table

__all__ = ["compare"]


def compare(
    *,
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    score: Annotated[
        str | None,
        typer.Option(help="What is drawn [default: the first score that all have].", show_default=False),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The page (.html) or the picture (.png, .svg, .pdf).")
    ] = Path("compare.html"),
    json: Annotated[bool, typer.Option("--json", help="Print the table as JSON, and nothing else.")] = False,
) -> None:
    """Draw and tabulate runs side by side: the score against rounds, bytes and time.

    Example: edge-fl compare runs/fedavg runs/fedbiad -o compare.html
    """
    from edge_fl.runs.compare import cell, comparison
    from edge_fl.runs.compare import compare as write_comparison
    from edge_fl.runs.run import Run

    opened = [Run.open(run) for run in runs]
    path = write_comparison(opened, output, score=score)
    rows = comparison(opened)
    if json:
        typer.echo(json_module.dumps({"page": str(path), "runs": rows}))
        return
    columns = list(dict.fromkeys(column for row in rows for column in row))
    show_table("Runs", columns, [[cell(row.get(column)) for column in columns] for row in rows])
    typer.echo(f"{path}")
