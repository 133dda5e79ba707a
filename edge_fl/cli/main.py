"""The `edge-fl` command: names the subcommands of all packages, and turns every refusal into one sentence."""

import os
import signal
import sys
import traceback
from typing import Annotated

import typer

from edge_fl import __version__
from edge_fl.cli.extras import extra_of
from edge_fl.cli.lazy import Named, group_of
from edge_fl.core.errors import EdgeFLError
from edge_fl.core.registry import of_own_code

__all__ = ["COMMANDS", "app", "run"]

COMMANDS = {
    "demo": Named(
        "device_sim.commands.demo:demo", "Train a small model on eight device processes, from export to result."
    ),
    "export": Named(
        "exporter.commands.export:export", "Turn a PyTorch model into a bundle of on-device training programs."
    ),
    "inspect": Named(
        "edge_fl.commands.inspect:inspect", "Show what a bundle holds and what each width of it costs."
    ),
    "serve": Named(
        "broker.commands.serve:serve", "Coordinate a run: pick devices, aggregate their updates, evaluate."
    ),
    "status": Named("broker.commands.status:status", "Show how far a run is, its devices, and what was refused."),
    "device": Named("edge_fl.commands.device:app", "Serve as one device of a fleet."),
    "provision": Named(
        "broker.commands.provision:app", "Give a broker, a coordinator and devices identities (TLS, passwords)."
    ),
    "fleet": Named("device_sim.commands.fleet:fleet", "Start a fleet of emulated devices from a file."),
    "simulate": Named(
        "device_sim.commands.simulate:simulate", "Simulate a run in this process, for comparing methods."
    ),
    "extract": Named(
        "exporter.commands.extract:extract", "Turn a run's weights into a model that predicts, at any width."
    ),
    "bench": Named("edge_fl.cli.bench:app", "Measure edge-fl against its floor and its peers, in the same run."),
    "compare": Named("edge_fl.commands.compare:compare", "Draw and tabulate runs side by side."),
    "data": Named("edge_fl.commands.data:app", "Look at data sets, and at how they are cut over clients."),
}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edge-fl {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=group_of(COMMANDS),
    no_args_is_help=True,
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


def run() -> None:
    """Run the command line; EDGE_FL_DEBUG=1 shows tracebacks. SIGTERM ends a command as Ctrl-C does."""
    terminated = False

    def terminate(*_: object) -> None:
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    try:
        _run()
    finally:
        if terminated:  # whoever waits for this process learns of the signal
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)


def _run() -> None:
    try:
        app()
    except EdgeFLError as error:
        _fail(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        extra = extra_of(error.name or "")
        _fail(f"'{error.name}' is not installed: pip install '{extra}'.", 18)
    except KeyboardInterrupt:
        _fail("Interrupted.", 130)
    except Exception as error:  # the last resort: a user is owed a sentence, whatever broke
        if ours := of_own_code(error):
            _fail(str(ours), ours.exit_code)
        _fail(f"Unexpected {type(error).__name__}: {error} (EDGE_FL_DEBUG=1 shows where).", 1)


def _fail(sentence: str, code: int) -> None:
    if os.environ.get("EDGE_FL_DEBUG"):
        traceback.print_exc()
    print(f"edge-fl: {sentence}", file=sys.stderr)
    sys.exit(code)
