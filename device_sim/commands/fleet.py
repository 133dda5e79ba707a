"""`edge-fl fleet`: agents on emulated hardware."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["fleet"]

_POLL_SECONDS = 0.5


def fleet(
    file: Annotated[Path, typer.Argument(help="The YAML file that describes the fleet (docs/fleet.md).")],
    *,
    broker: Annotated[str, typer.Option(help="The MQTT broker, mqtt://host:port.")] = "mqtt://127.0.0.1:1883",
    once: Annotated[bool, typer.Option("--once", help="Exit when the run is over.")] = False,
    connect_timeout: Annotated[float, typer.Option(help="Seconds to try the first connection for.")] = 15.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="State folders and logs [default: fleets/TIME].")
    ] = None,
) -> None:
    """Start real agents on emulated hardware: slow processors, little memory, bad links, batteries.

    Example: edge-fl fleet fleet.yaml --broker mqtt://127.0.0.1:1883
    """
    from rich.console import Console
    from rich.table import Table

    from device_sim.emulation.emulation import EmulatedFleet
    from device_sim.emulation.fleet_file import read_fleet
    from edge_fl.core.errors import RunError
    from edge_fl.transport.address import BrokerAddress
    from edge_fl.transport.connection import Connection
    from edge_fl.wire.messages import Topics

    console = Console(stderr=True)
    root = output or Path("fleets") / time.strftime("%Y%m%d-%H%M%S")
    address = BrokerAddress.parse(broker)
    emulated = EmulatedFleet(
        read_fleet(file),
        address=address,
        root=root,
        once=once,
        connect_timeout=connect_timeout,
    )
    table = Table("device", "profile", "share of a core", "memory (MB)", "Mbps down/up", title=f"logs in {root}")
    for device in emulated.devices:
        link = device.profile.link.slowed(device.scale)
        speeds = f"{link.down:.3g}/{link.up:.3g}"
        table.add_row(device.client, device.group.profile, f"{device.share:.4f}", str(device.memory_mb), speeds)
    console.print(table)
    probe = Connection(address=address, client_id=f"fleet-{os.getpid()}", subscriptions=[Topics("edge-fl").all])
    probe.open(timeout=connect_timeout)  # agents would name the links in between
    probe.close()
    told: dict[str, str] = {}
    with emulated:
        running = True
        while running:
            time.sleep(_POLL_SECONDS)
            running, problems = emulated.running, emulated.problems()
            for client in problems.keys() - told.keys():
                console.print(problems[client], highlight=False, markup=False, soft_wrap=True)
            told = problems
    if told:
        raise RunError(
            f"{len(told)} of {len(emulated.devices)} devices did not end well; their logs are in '{root}'."
        )
