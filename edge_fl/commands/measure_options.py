"""What the benchmarks' commands share: how a result is asked for and shown."""

from pathlib import Path
from typing import Annotated

import typer

from edge_fl.commands.options import runtime_name
from edge_fl.measure.table import Result

__all__ = ["Json", "Models", "Output", "Runtimes", "show"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of Markdown.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Also write the page to this file.")]

Models = Annotated[list[str] | None, typer.Option("--model", help="A model; repeat for several [default: all].")]
Runtimes = Annotated[
    list[str] | None,
    typer.Option("--runtime", help="A runtime; repeat for several [default: all installed].", parser=runtime_name),
]


def show(result: Result, output: Path | None, *, as_json: bool) -> None:
    """Print a result, and write its page where one is asked for."""
    typer.echo(result.json() if as_json else result.markdown())
    if output is not None:
        result.write(output)
