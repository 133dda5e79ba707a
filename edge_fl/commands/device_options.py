"""What the commands of a device read alike from their options."""

import platform
import re
from pathlib import Path
from typing import Annotated

import typer

from edge_fl.agent.state import state_home
from edge_fl.commands.options import runtime_name

__all__ = ["ConnectTimeout", "Fleet", "Id", "RuntimeName", "State", "TestShare", "client_of", "state_of"]

Id = Annotated[str | None, typer.Option(help="This device's id [default: host name and data].")]
State = Annotated[Path | None, typer.Option(help="State folder [default: ~/.local/state/edge-fl/ID].")]
RuntimeName = Annotated[str, typer.Option(help="The runtime to train in.", parser=runtime_name)]
TestShare = Annotated[
    float, typer.Option(help="Share of the data to keep out of training, for evaluating models on it.")
]
ConnectTimeout = Annotated[float, typer.Option(help="Seconds to try the first connection for.")]
Fleet = Annotated[str, typer.Option(help="Keeps fleets on one broker apart.")]


def client_of(id: str | None, data: str) -> str:
    """The device's id; raises ConfigError where it cannot be one."""
    from edge_fl.wire.messages import check_id

    return check_id(id if id is not None else _default_id(data))


def state_of(state: Path | None, client: str) -> Path:
    """The device's state folder."""
    return state if state is not None else state_home() / client


def _default_id(data: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{platform.node() or 'device'}-{data}")
    return name[-64:].strip("-.")  # the end tells devices of one host apart
