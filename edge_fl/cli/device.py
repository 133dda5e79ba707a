"""`edge-fl device`: the agent. Imports nothing heavier than the runtime it is told to use."""

import os
import platform
import re
from pathlib import Path
from typing import Annotated

import typer

from edge_fl.cli.build_runtime import build_runtime
from edge_fl.cli.options import runtime_name, show_log
from edge_fl.errors import RuntimeMissingError

__all__ = ["app"]

app = typer.Typer(subcommand_metavar="[COMMAND]")
app.command("build-runtime")(build_runtime)


@app.callback(invoke_without_command=True)
def device(
    context: typer.Context,
    *,
    broker: Annotated[
        str, typer.Option(help="The MQTT broker, mqtt://host:port (required).", show_default=False)
    ] = "",
    data: Annotated[
        str,
        typer.Option(
            help="The data to train on: NAME, NAME:i/n for part i of n, or NAME:i/n:owners (required).",
            show_default=False,
        ),
    ] = "",
    id: Annotated[str | None, typer.Option(help="This device's id [default: host name and data].")] = None,
    state: Annotated[Path | None, typer.Option(help="State folder [default: ~/.local/state/edge-fl/ID].")] = None,
    runtime: Annotated[str, typer.Option(help="The runtime to train in.", parser=runtime_name)] = "onnx",
    tier: Annotated[int, typer.Option(min=0, help="Class of hardware: picks the dropout rate of that tier.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads a train step may use.")] = 1,
    once: Annotated[bool, typer.Option("--once", help="Exit when the run is over.")] = False,
    connect_timeout: Annotated[float, typer.Option(help="Seconds to try the first connection for.")] = 15.0,
    fleet: Annotated[str, typer.Option(help="Keeps fleets on one broker apart.")] = "edge-fl",
) -> None:
    """Serve as one device of a fleet: train what the coordinator asks, upload the rows that were kept.

    Example: edge-fl device --broker mqtt://127.0.0.1:1883 --data fashion-mnist:0/10
    """
    if context.invoked_subcommand is not None:
        return
    for option, value in (("--broker", broker), ("--data", data)):
        if not value:  # typer would ask a subcommand for it too, were it declared as required
            raise typer.BadParameter("it is required.", param_hint=f"'{option}'")
    from edge_fl.agent.agent import Agent, AgentSettings
    from edge_fl.data.partition import DataSpec, client_samples
    from edge_fl.runtimes.base import runtime_names
    from edge_fl.transport.connection import BrokerAddress
    from edge_fl.wire.messages import check_id

    if runtime not in runtime_names():
        raise RuntimeMissingError(f"There is no runtime '{runtime}'; there are {', '.join(runtime_names())}.")
    client = check_id(id if id is not None else _default_id(data))
    show_log()
    settings = AgentSettings(
        broker=BrokerAddress.parse(broker),
        client=client,
        state=state if state is not None else _state_home() / client,
        runtime=runtime,
        tier=tier,
        once=once,
        threads=threads,
        connect_timeout=connect_timeout,
        fleet=fleet,
    )
    Agent(settings, client_samples(DataSpec.parse(data))).run()


def _default_id(data: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{platform.node() or 'device'}-{data}")
    return name[-64:].strip("-.")  # the end tells devices of one host apart


def _state_home() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "edge-fl"
