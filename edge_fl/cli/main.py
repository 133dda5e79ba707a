"""The `edge-fl` command: gathers the subcommands, and turns every refusal into one sentence and an exit code."""

import os
import sys
import traceback
from typing import Annotated

import typer

from edge_fl import __version__
from edge_fl.cli.bench import app as bench
from edge_fl.cli.data import app as data
from edge_fl.cli.demo import demo
from edge_fl.cli.device import app as device
from edge_fl.cli.export import export
from edge_fl.cli.extract import extract
from edge_fl.cli.fleet import fleet
from edge_fl.cli.inspect import inspect
from edge_fl.cli.serve import serve
from edge_fl.cli.simulate import simulate
from edge_fl.cli.status import status
from edge_fl.errors import EdgeFLError

__all__ = ["app", "run"]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edge-fl {__version__}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.callback()
def main(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Say which.")
    ] = False,
) -> None:
    """Take a PyTorch model to a fleet, train it there, upload only the rows each device trained."""
    del version


app.command("demo")(demo)
app.command("export")(export)
app.command("inspect")(inspect)
app.command("serve")(serve)
app.command("status")(status)
app.add_typer(device, name="device")
app.command("fleet")(fleet)
app.command("simulate")(simulate)
app.command("extract")(extract)
app.add_typer(bench, name="bench")
app.add_typer(data, name="data")


def run() -> None:
    """Run the command line; EDGE_FL_DEBUG=1 shows tracebacks."""
    try:
        app()
    except EdgeFLError as error:
        _fail(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        _fail(f"'{error.name}' is not installed; this command needs an extra, see the README.", 18)
    except KeyboardInterrupt:
        _fail("Interrupted.", 130)
    except Exception as error:  # the last resort: a user is owed a sentence, whatever broke
        _fail(f"Unexpected {type(error).__name__}: {error} (EDGE_FL_DEBUG=1 shows where).", 1)


def _fail(sentence: str, code: int) -> None:
    if os.environ.get("EDGE_FL_DEBUG"):
        traceback.print_exc()
    print(f"edge-fl: {sentence}", file=sys.stderr)
    sys.exit(code)
